//! The experiment about size from outside: it counts, and what a fault or an eviction takes does not grow.

#[path = "../../../tests/skipped.rs"]
mod skipped;
use std::process::Command;

/// What a thread of the program may wait for.
const STEPS: [&str; 8] = [
    "fault: first touch",
    "fault: page in the pool",
    "fault: page in staging",
    "fault at the limit",
    "eviction: a batch into staging",
    "eviction: a batch into the pool",
    "store: a page to a swap file",
    "store: a page from a swap file",
];

/// What the pool does for these: without a system call, most of the time.
const FRAMES: [&str; 3] = ["frames: 64", "frames: one of the last node", "frames: one, of which there are none"];

/// What no fault waits for, and to how many times as many instructions it grows at most.
const GROWS: [(&str, f64); 2] = [("frames: the lists of all CPUs", 1.25), ("fork: the child's store", 1.5)];

#[test]
fn a_fault_takes_as_much_on_256_cpus_and_among_1000_processes() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "cannot run here, and CI must not skip: it takes root");
        skipped::skipped("userfaultfd with fork events needs root or CAP_SYS_PTRACE");
        return;
    }
    let out = Command::new(env!("CARGO_BIN_EXE_lowtide-lab")).args(["scale", "--quick"]).output().unwrap();
    let (text, said) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(matches!(out.status.code(), Some(0 | 1)), "{:?}: {said}", out.status);
    for step in STEPS {
        let calls = executed(&text, step).map(|[_, _, calls]| calls);
        assert!(calls.iter().all(|&calls| calls >= 1), "{step}: a page comes and goes by a system call: {text}");
    }
    for step in STEPS.into_iter().chain(FRAMES) {
        for [instructions, locked, _] in executed(&text, step) {
            assert!(instructions > 100 && locked >= 1, "{step} is not counted: {text}");
        }
        for of in ["CPUs and nodes", "processes"] {
            let finding = text.lines().find(|line| line.trim().starts_with(step) && line.contains(&format!("(with {of})")));
            assert!(finding.is_some_and(|line| line.ends_with("ok")), "{step} grows with {of}: {text}");
        }
    }
    for (step, most) in GROWS {
        let [least, grown, ..] = executed(&text, step).map(|[instructions, ..]| instructions as f64);
        assert!(least > 0.0 && grown <= least * most, "{step} grows with CPUs: {text}");
    }
    let control = text.lines().filter(|line| line.trim().starts_with("control") && line.ends_with("ok")).count();
    assert_eq!(control, 2, "a walk would not be seen: {text}");
    assert!(out.status.success() && !text.lines().any(|line| line.ends_with("MISSED")), "{text}");
}

/// What is executed in a step with the smallest and the largest number of CPUs, and with that of processes: instructions, those
/// of them that lock, and system calls.
fn executed(text: &str, step: &str) -> [[u64; 3]; 4] {
    let rows = text.lines().filter(|line| line.starts_with(&format!("| {step}")) && line.contains(" / "));
    let cells = rows.flat_map(|row| row.trim_end_matches(" |").split(" | ").skip(1));
    let numbers = |cell: &str| cell.split(" / ").map(|n| n.parse().unwrap()).collect::<Vec<u64>>().try_into().unwrap();
    cells.map(numbers).collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("no two rows of {step}: {text}"))
}
