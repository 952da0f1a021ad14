//! A program keeps the world that it would have without lowtide: exit status, input and output, signals.

use crate::running::Running;
use crate::{LOWTIDE, lowtide, with, works};
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn exit_status_is_the_programs() {
    if !works() {
        return;
    }
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -SEGV $$", 139)] {
        let output = lowtide().args(["run", "--ram", "64M", "--", "sh", "-c", script]).output().expect("lowtide starts");
        assert_eq!(output.status.code(), Some(code), "{script}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.lines().all(|line| line.starts_with("lowtide: ")), "{text}");
        assert!(text.lines().last().is_some_and(|line| line.contains("ram")), "{text}");
    }
    // Through the environment, and more than there is: a warning.
    let output = lowtide().args(["run", "--", "true"]).env("LOWTIDE_RAM", "4P").output().expect("lowtide starts");
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("warning: --ram 4P is more than the RAM there is"));
}

#[test]
fn a_stack_that_is_too_small_is_refused() {
    for size in ["32", "64"] {
        let script = format!("ulimit -s {size}; exec '{LOWTIDE}' run --ram 64M true");
        let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
        crate::assert_refused(&output, 2, &["stack", size, "ulimit -s 128"]);
    }
}

#[test]
fn no_dashes_are_needed_before_the_program() {
    if !works() {
        return;
    }
    for (line, said) in [
        ("run --ram 64M --quiet echo --quiet --ram 1 -- -n", "--quiet --ram 1 -- -n\n"),
        ("run --ram 64M --quiet -- echo --quiet -- -n", "--quiet -- -n\n"),
        ("run --quiet --ram 64M env printf %s,%s --stats /no/such", "--stats,/no/such"),
    ] {
        let output = with(line, Path::new(""));
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()), (Some(0), said), "{line}");
    }
    // What the program says of itself, not what lowtide does.
    let help = with("run --ram 64M --quiet env --help", Path::new(""));
    let native = Command::new("env").arg("--help").output().expect("env starts");
    assert!(help.status.success() && help.stdout == native.stdout, "{}", String::from_utf8_lossy(&help.stdout));
}

#[test]
fn input_output_and_environment_are_the_programs() {
    if !works() {
        return;
    }
    let mut child = lowtide();
    child.args(["run", "--ram", "64M", "--quiet", "--", "sh", "-c", "cat; echo $LD_PRELOAD; ls /proc/self/fd | wc -l"]);
    child.env("LD_PRELOAD", "libm.so.6").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().expect("lowtide starts");
    child.stdin.take().expect("piped").write_all(b"hello\n").expect("written");
    let pid = child.id();
    let output = child.wait_with_output().expect("ended");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "hello");
    assert!(lines[1].starts_with(&format!("/proc/{pid}/fd/")) && lines[1].ends_with(":libm.so.6"), "{text}");
    // The test itself may have been started with some open (cargo's jobserver).
    let native = Command::new("sh").args(["-c", "ls /proc/self/fd | wc -l"]).output().expect("sh starts");
    assert_eq!(lines[2], String::from_utf8_lossy(&native.stdout).trim(), "descriptors leak into the program");
}

#[test]
fn signal_settings_are_inherited() {
    if !works() {
        return;
    }
    let show = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    for before in ["", "trap '' PIPE;", "trap '' INT QUIT HUP CHLD;"] {
        let of = |runner: &str| {
            let script = format!("{before} exec {runner} {show}");
            let output = Command::new("sh").args(["-c", &script]).output().expect("sh starts");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let native = of("");
        assert!(native.contains("SigIgn"), "{native}");
        assert_eq!(of(&format!("{LOWTIDE} run --ram 64M --")), native, "{before}");
    }
}

#[test]
fn signals_are_passed_on() {
    if !works() {
        return;
    }
    let mut run = Running::new(
        "trap 'echo usr1' USR1; trap 'echo int' INT; trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done",
    );
    run.signal(Signal::USR1);
    assert_eq!(run.next_line(), "usr1");
    run.signal(Signal::INT);
    assert_eq!(run.next_line(), "int");
    run.signal(Signal::TERM);
    let (code, _, _, stats) = run.output();
    assert_eq!(code, Some(9));
    assert_eq!(stats["program"], "sh");

    let run = Running::new("echo ready; exec sleep 100");
    run.signal(Signal::TERM);
    assert_eq!(run.output().0, Some(143));
}

#[test]
fn the_program_ends_with_lowtide() {
    if !works() {
        return;
    }
    let mut run = Running::new("echo $$; exec sleep 100");
    let program = PathBuf::from("/proc").join(&run.line);
    assert!(program.exists());
    run.signal(Signal::KILL);
    assert_eq!(run.child.wait().expect("ended").signal(), Some(9));
    let started = Instant::now();
    let is_gone = || match std::fs::read_to_string(program.join("stat")) {
        Ok(stat) => stat.contains(") Z "),
        Err(_) => true,
    };
    while !is_gone() {
        assert!(started.elapsed() < Duration::from_secs(5), "the program goes on without lowtide");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nested_runs_are_refused() {
    if works() {
        let run = Running::new(&format!("{LOWTIDE} run --ram 64M -- true 2>&1; echo $?"));
        assert!(run.line.starts_with("lowtide: this is already inside"), "{}", run.line);
        assert!(run.output().1.ends_with("2\n"));
    }
}
