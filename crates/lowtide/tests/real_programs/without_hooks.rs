//! Programs whose memory calls lowtide can't hook: static ones, which `lowtide run` enters when they are executed, and those of
//! musl, which preload the agent.

use std::path::PathBuf;

use lowtide_config::proc;
use rustix::thread::CapabilitySet;

use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::{limited_turn, limited_turn_beside, native_only, say, skip, tool, turn, turn_beside};
use crate::measure::{Job, Limit, Outcome, Running, Swap};
use crate::programs::{compiled, compiled_as, compiled_statically, copy_program, with_musl};
use crate::raw_moves::{exact_moves, following_turn_beside};

const NOBODY: u32 = 65534;

fn limited(job: &Job, mib: u64) -> Outcome {
    job.limited(&Limit { ram: mib << 20, swap: Swap::Default })
}

/// Whether lowtide may follow what programs without hooks execute.
pub fn may_be_followed() -> bool {
    let has_it = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    if !has_it {
        skip("lowtide follows the execs of programs without hooks with CAP_SYS_ADMIN only: run the tests as root");
    }
    has_it
}

fn all<const N: usize>(programs: [Option<PathBuf>; N]) -> Option<Vec<PathBuf>> {
    programs.into_iter().collect()
}

/// Natively and under limits. What grows is found by looking, so it may pass the limit as a stream of new mappings does.
fn compared(name: &str, program: Option<PathBuf>, words: &str) {
    let Some(_turn) = turn() else { return };
    let Some(program) = program else { return };
    compare(&Job::new(name, program).words(words), Growth::Stream, Data::Compressible, ends_well);
}

#[test]
fn a_static_program() {
    compared("static, one malloc", compiled_statically("one_malloc"), "96");
}

#[test]
fn a_static_program_of_threads() {
    compared("static, many threads", compiled_statically("many_threads"), "8 24 60");
}

#[test]
fn a_static_program_that_is_anywhere() {
    let program = compiled_as("small_mallocs", "static-pie", &["-static-pie", "-fPIE"]);
    compared("static-pie, small mallocs", program, "700000");
}

#[test]
fn musl_static() {
    compared("musl static, small mallocs", with_musl("small_mallocs", true), "700000");
}

#[test]
fn musl_dynamic() {
    compared("musl, many threads", with_musl("many_threads", false), "8 24 60");
}

/// A thread whose end is not seen because of that leaves musl's list of threads locked.
#[test]
fn the_word_that_the_kernel_clears_stays_in_memory() {
    let Some(_turn) = following_turn_beside() else { return };
    let programs = [
        ("static", compiled_statically("cleared_word")),
        ("musl static", with_musl("cleared_word", true)),
        ("musl", with_musl("cleared_word", false)),
    ];
    for (kind, program) in programs {
        let Some(program) = program else { return };
        let job = Job::new(&format!("{kind}, the word that is cleared"), program).words("96 fork");
        let outcome = limited(&job, 40);
        assert!(ends_well(&outcome) && outcome.left.is_empty(), "{kind}: {outcome:?}");
    }
}

/// Its thread has gone on by the time a move is known, and what has moved is two mappings then, of which nothing is reported.
#[test]
fn what_is_moved_and_protected_at_once_is_whole() {
    let Some(_turn) = limited_turn_beside() else { return };
    let Some(program) = compiled_statically("moved_and_protected") else { return };
    let outcome = limited(&Job::new("moved and protected", program).words("96 400"), 32);
    assert!(ends_well(&outcome) && outcome.left.is_empty(), "{outcome:?}");
    assert!(outcome.stat("evictions.pages") > 10_000.0, "{}", outcome.stats);
}

/// The kernel's reports of what several threads move come in any order. (Where lowtide refuses their moves they are right.)
#[test]
fn threads_that_move_memory_are_right_or_refused() {
    let Some(_turn) = limited_turn_beside() else { return };
    for program in [compiled_statically("thread_mix"), with_musl("thread_mix", false)] {
        let Some(program) = program else { return };
        for moves in ["on", "off"] {
            let job = Job::new("threads mix without hooks", &program).words("4 1500 48");
            let outcome = job.limited(&exact_moves(moves, 64));
            let may_be_refused = moves == "off" || outcome.stat("work.calls_refused") == 0.0;
            let is_refused = outcome.status == 125 && outcome.stderr.contains("by raw system calls of several threads");
            assert!(ends_well(&outcome) || is_refused && may_be_refused, "{outcome:?}");
            assert!(outcome.left.is_empty(), "{outcome:?}");
        }
    }
}

/// Nothing is different for what a program without hooks executes, a program with another user's rights included.
#[test]
fn what_a_program_without_hooks_starts_begins_as_natively() {
    let Some(_turn) = turn() else { return };
    let starters = [compiled_statically("starts"), with_musl("starts", false)];
    let programs = [compiled("begins"), compiled_statically("begins"), with_musl("begins", true)];
    let (Some(starters), Some(programs)) = (all(starters), all(programs)) else { return };
    if native_only() {
        return;
    }
    for (starter, program) in starters.iter().flat_map(|starter| programs.iter().map(move |program| (starter, program))) {
        let gives_rights = program.with_extension("setuid");
        let _ = std::fs::remove_file(&gives_rights);
        copy_program(program, &gives_rights);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&gives_rights, Some(NOBODY), None).expect("chown");
            std::fs::set_permissions(&gives_rights, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).expect("mode");
        }
        for program in [program, &gives_rights] {
            let job = Job::new("begins without hooks", starter).args([program]);
            let native = job.native();
            assert!(ends_well(&native) && native.stdout.lines().filter(|line| *line == "OK").count() == 4, "{native:?}");
            let outcome = limited(&job, 32);
            assert!(
                ends_well(&outcome) && outcome.stdout == native.stdout && outcome.left.is_empty(),
                "{outcome:?} {native:?}"
            );
        }
    }
}

/// What has no hooks is forked as by raw calls: the child's memory is brought in whole before it begins.
#[test]
fn a_static_program_that_forks() {
    let Some(_turn) = turn_beside() else { return };
    let Some(program) = compiled_statically("forks") else { return };
    if native_only() {
        return;
    }
    for mode in ["stay", "orphan", "nested"] {
        let job = Job::new(&format!("static, forks, {mode}"), &program).words(&format!("{mode} 64 1"));
        let native = job.native();
        let outcome = limited(&job, 48);
        assert!(outcome.status == 0 && outcome.stdout == native.stdout && outcome.left.is_empty(), "{outcome:?}");
        assert!(!outcome.stderr.contains("not limited"), "{}", outcome.stderr);
    }
}

/// The parent ends, or executes another program, while its child is given its memory: the child has all of it all the same, or
/// was never there.
#[test]
fn a_static_program_that_becomes_a_daemon() {
    let Some(_turn) = limited_turn_beside() else { return };
    for program in [compiled_statically("daemonize"), with_musl("daemonize", false)] {
        let Some(program) = program else { return };
        for mode in ["once", "twice", "execs", "thread"] {
            let outcome =
                limited(&Job::new(&format!("daemon without hooks {mode}"), &program).words(&format!("96 {mode}")), 40);
            let is_there = outcome.stdout.contains("OK the daemon") || mode == "thread" && outcome.stdout.is_empty();
            assert!(outcome.status == 0 && is_there && outcome.left.is_empty(), "{mode}: {outcome:?}");
        }
    }
}

/// A forked child comes to be limited in the middle of what it does, and does not notice.
#[test]
fn forked_children_of_programs_without_hooks() {
    let Some(_turn) = limited_turn() else { return };
    for program in [compiled_statically("copied"), with_musl("copied", false)] {
        let Some(program) = program else { return };
        let outcome = limited(&Job::new("copied without hooks", program).words("160"), 48);
        assert!(outcome.status == 0 && outcome.stdout == "OK\n".repeat(5) && outcome.left.is_empty(), "{outcome:?}");
        assert!(!outcome.stderr.contains("warning"), "{}", outcome.stderr);
        // By what lowtide counts: copies are not among the samples.
        assert!(outcome.stat("evictions.pages") > 5.0 * 20_000.0, "{}", outcome.stats);
        assert!(outcome.stat("ram_peak") > (32 << 20) as f64, "{}", outcome.stats);
        assert!(outcome.stat("ram_peak") < Growth::Stream.bound(48 << 20) as f64, "{}", outcome.stats);
    }
}

/// The sum over the processes of a run, each page divided by how many have it, with lowtide's own: the highest while it goes on.
fn highest_by_parts(run: &mut Running) -> u64 {
    let mut highest = 0;
    run.wait_until(|run| {
        let parts = proc::of_session(run.session).iter().map(|process| proc::part_of_anonymous(process.pid)).sum::<u64>();
        highest = highest.max(parts + proc::memfd_bytes(&[run.session]));
        false
    });
    highest
}

/// What a fork brings in for the child is said, and what both have is said once.
#[test]
fn a_fork_of_a_static_program_is_counted() {
    let Some(_turn) = turn() else { return };
    let Some(program) = compiled_statically("copied_whole") else { return };
    if native_only() {
        return;
    }
    let job = Job::new("static, a fork is counted", program).words("100");
    let is_right = |_| {
        let mut run = job.start_limited(&Limit { ram: 60 << 20, swap: Swap::Default });
        let highest = highest_by_parts(&mut run) as f64;
        let outcome = run.finish();
        assert!(ends_well(&outcome) && outcome.left.is_empty(), "{outcome:?}");
        let told = outcome.stat("ram_peak");
        say(&format!("  a fork without hooks: {} MiB, {} told", highest as u64 >> 20, told as u64 >> 20));
        // A sample may come between a fork and its child, and count a page twice.
        (highest * 0.75..highest * 1.05 + (2 << 20) as f64).contains(&told)
    };
    // Where the machine is busy nobody looks at the right moment.
    assert!((0..3).any(is_right), "what the run says is not what is there");
}

/// What a parent and its workers have in common counts once.
#[test]
fn workers_of_a_static_program() {
    let Some(_turn) = turn() else { return };
    let Some(program) = compiled_statically("prefork") else { return };
    let job = Job::new("static, workers", program).words("40 6 2 4");
    let native = job.native();
    assert!(ends_well(&native), "{native:?}");
    if native_only() {
        return;
    }
    let outcome = limited(&job, 100);
    assert!(ends_well(&outcome) && outcome.stdout == native.stdout && outcome.left.is_empty(), "{outcome:?}");
    // Counted seven times it was 270 MiB, and 70,000 pages left.
    assert!(outcome.stat("ram_peak") < (180 << 20) as f64, "{}", outcome.stats);
    assert!(outcome.stat("evictions.pages") < 20_000.0, "{}", outcome.stats);
}

/// One that is stopped just when it is to be entered is entered in the end. (Of these children that happens to two or so.)
#[test]
fn forked_children_that_are_stopped_again_and_again() {
    let Some(_turn) = turn() else { return };
    let Some(program) = compiled_statically("stopped_copies") else { return };
    let job = Job::new("stopped copies", program).words("4 48");
    let native = job.native();
    assert!(ends_well(&native), "{native:?}");
    if native_only() {
        return;
    }
    let outcome = limited(&job, 64);
    assert!(ends_well(&outcome) && outcome.left.is_empty(), "{outcome:?}");
    assert_eq!(outcome.stats["pids"].as_array().map(Vec::len), Some(49), "all are limited: {}", outcome.stats);
}

/// The same descriptors, signals, rights, arguments and environment as natively; as the first program and as a child, with
/// signals blocked and ignored that a tracer may need.
#[test]
fn a_static_program_begins_as_natively() {
    let Some(_turn) = turn_beside() else { return };
    let (Some(program), Some(env)) = (compiled_statically("begins"), tool("env")) else { return };
    if native_only() {
        return;
    }
    let signals = ["--block-signal=TRAP,USR1", "--ignore-signal=TRAP,SEGV"];
    let shell = PathBuf::from("/bin/sh");
    let script = format!("trap '' TERM; {} --block-signal=TRAP,SEGV '{}' one two; exit 0", env.display(), program.display());
    for job in [
        Job::new("static, begins", program.clone()).words("one two"),
        Job::new("static, begins as a child", &program).words("one two").behind(env.clone(), &signals),
        Job::new("static, begins behind a shell", shell).args(["-c", &script]),
    ] {
        let native = job.native();
        let outcome = limited(&job, 32);
        assert!(ends_well(&outcome) && ends_well(&native), "{outcome:?}");
        assert_eq!(outcome.stdout, native.stdout);
    }
}

/// A tree in which programs of all kinds execute each other: each is limited, and one that can't be executed harms nobody.
#[test]
fn a_tree_of_all_kinds() {
    let Some(_turn) = turn() else { return };
    let programs = (compiled("one_malloc"), compiled_statically("one_malloc"), with_musl("one_malloc", false));
    let (Some(dynamic), Some(fixed), Some(musl)) = programs else { return };
    let Some(executes) = with_musl("executes", false) else { return };
    let [dynamic, fixed, musl, executes] = [dynamic, fixed, musl, executes].map(|path| path.display().to_string());
    let whole = std::fs::read(&fixed).expect("read");
    let made = |name: &str, bytes: &[u8], mode: u32| {
        let path = format!("{fixed}.{name}");
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("mode");
        path
    };
    // The kernel refuses these: one is no program, one must not be executed, one is open for writing.
    let (cut, forbidden, busy) = (made("cut", &whole[..200], 0o755), made("mode", &whole, 0o644), made("busy", &whole, 0o755));
    let by_script = made("script", format!("#!{fixed}").as_bytes(), 0o755);
    let script = format!(
        "for bad in '{cut}' '{forbidden}'; do \"$bad\" 2>/dev/null; echo $?; done; '{busy}' 96 2>/dev/null 3>>'{busy}'; echo $?; \
         '{fixed}' 96 & '{musl}' 96 & '{dynamic}' 96 & wait; '{executes}' '{dynamic}' 96; sh -c \"exec '{fixed}' 96\"; \
         '{by_script}' 2>&1 | grep -c OK; /lib64/ld-linux-x86-64.so.2 '{dynamic}' 96"
    );
    let job = Job::new("a tree of all kinds", PathBuf::from("/bin/sh")).args(["-c", &script]);
    let native = job.native();
    assert!(native.stdout.matches("OK").count() == 6 && native.stdout.starts_with("126\n126\n126\n"), "{native:?}");
    if native_only() {
        return;
    }
    let outcome = limited(&job, 64);
    assert!(outcome.status == 0 && outcome.left.is_empty() && outcome.stdout == native.stdout, "{outcome:?}");
    assert!(!outcome.stderr.contains("not limited"), "{}", outcome.stderr);
    assert!(outcome.peak < Growth::Stream.bound(64 << 20), "{outcome:?}");
}

/// What a program without hooks executes is limited, however it does that.
#[test]
fn what_a_program_without_hooks_starts() {
    let Some(_turn) = turn() else { return };
    let starters = [compiled_statically("starts"), with_musl("starts", true), with_musl("starts", false)];
    let programs = [compiled("one_malloc"), compiled_statically("one_malloc"), with_musl("one_malloc", false)];
    let (Some(starters), Some(programs)) = (all(starters), all(programs)) else { return };
    for (i, starter) in starters.iter().enumerate() {
        // Each kind of program by one of them.
        let program = programs[i].display().to_string();
        let job = Job::new(&format!("started without hooks {i}"), starter).args([&program, "160"]);
        let native = job.native();
        assert!(ends_well(&native) && native.stdout.matches("OK").count() == 4, "{native:?}");
        if native_only() {
            continue;
        }
        let outcome = limited(&job, 48);
        assert!(outcome.status == 0 && outcome.left.is_empty() && outcome.stdout == native.stdout, "{outcome:?}");
        assert!(!outcome.stderr.contains("warning"), "{}", outcome.stderr);
        if may_be_followed() {
            assert!(outcome.peak < Growth::Stream.bound(48 << 20), "{outcome:?}");
        }
    }
}

/// A root directory as a system of musl's has it: a shell that is static, musl's loader, and programs of both kinds. Where there is
/// /proc they are limited; without it that is said, once.
#[test]
fn in_a_root_without_glibc() {
    let Some(_turn) = turn() else { return };
    if native_only() || !may_be_followed() {
        return;
    }
    let programs =
        [tool("busybox"), with_musl("one_malloc", false), with_musl("one_malloc", true), compiled_statically("executes")];
    let (Some(programs), Some(unshare)) = (all(programs), tool("unshare")) else { return };
    let root = programs[1].with_extension("root");
    let _ = std::fs::remove_dir_all(&root);
    for directory in ["bin", "dev", "lib", "proc"] {
        std::fs::create_dir_all(root.join(directory)).expect("a directory under target/");
    }
    // The shell opens it for what it starts in the background.
    std::fs::write(root.join("dev/null"), []).expect("a file under target/");
    copy_program("/lib/ld-musl-x86_64.so.1".as_ref(), &root.join("lib/ld-musl-x86_64.so.1"));
    for (program, name) in programs.iter().zip(["busybox", "dynamic", "fixed", "executes"]) {
        copy_program(program.as_ref(), &root.join("bin").join(name));
    }
    let script =
        "/bin/dynamic 96 & /bin/fixed 96 & /bin/busybox env -i /bin/executes /bin/dynamic 96; wait; exec /bin/fixed 96";
    for (mount, is_limited) in [("mount -t proc proc", true), ("test -d", false)] {
        let enter = format!("{mount} '{0}/proc'; exec chroot '{0}' /bin/busybox sh -c \"$0\"", root.display());
        let job = Job::new("a root without glibc", &unshare).args(["--mount", "sh", "-ec", &enter, script]);
        let native = job.native();
        assert!(native.status == 0 && native.stdout.matches("OK").count() == 4, "{native:?}");
        let outcome = job.limited(&Limit { ram: 64 << 20, swap: Swap::Ram });
        assert!(outcome.status == 0 && outcome.left.is_empty() && outcome.stdout == native.stdout, "{outcome:?}");
        assert_eq!(outcome.stderr.matches("warning").count(), usize::from(!is_limited), "{}", outcome.stderr);
        assert_eq!(outcome.peak < Growth::Stream.bound(64 << 20), is_limited, "{outcome:?}");
    }
}

/// A child that would be killed for what lowtide has it do is let alone.
#[test]
fn a_child_with_a_filter_of_its_own() {
    let Some(_turn) = limited_turn_beside() else { return };
    let Some(program) = compiled_statically("confined") else { return };
    let outcome = limited(&Job::new("confined", program), 32);
    assert!(ends_well(&outcome) && outcome.left.is_empty(), "{outcome:?}");
    assert!(outcome.stderr.contains("is not limited: it has set up a system call filter"), "{}", outcome.stderr);
}

/// The kernel allows no second filter of this kind: all is as before there was one, and it is said.
#[test]
fn under_a_filter_of_somebody_else() {
    let Some(_turn) = limited_turn_beside() else { return };
    let starters = [compiled_statically("starts"), with_musl("starts", false)];
    let (Some(starters), Some(around), Some(program)) = (all(starters), compiled("listens"), compiled("one_malloc")) else {
        return;
    };
    if !may_be_followed() {
        return;
    }
    for starter in starters {
        let job = Job::new("under a listener", starter).args([&program]).args(["1"]).around(around.clone(), &[]);
        let outcome = limited(&job, 32);
        assert!(outcome.status == 0 && outcome.stdout.matches("OK").count() == 4 && outcome.left.is_empty(), "{outcome:?}");
        assert_eq!(outcome.stderr.matches("another system call filter").count(), 1, "{}", outcome.stderr);
    }
}

/// Of threads that execute something at the same time one does, and nobody waits for ever.
#[test]
fn threads_that_race_to_execute() {
    let Some(_turn) = turn_beside() else { return };
    let Some(program) = compiled_statically("races_to_exec") else { return };
    if native_only() {
        return;
    }
    for executed in [compiled("one_malloc"), compiled_statically("one_malloc")] {
        let Some(executed) = executed else { return };
        let job = Job::new("races to exec", &program).args(["200"]).args([executed]).args(["1"]);
        let (native, outcome) = (job.native(), limited(&job, 32));
        assert!(ends_well(&native), "{native:?}");
        assert!(ends_well(&outcome) && outcome.stdout == native.stdout && outcome.left.is_empty(), "{outcome:?}");
    }
}

/// Killed while it is entered, and before and after that.
#[test]
fn a_static_program_that_is_killed_as_it_begins() {
    let Some(_turn) = limited_turn_beside() else { return };
    let (Some(program), Some(timeout)) = (compiled_statically("one_malloc"), tool("timeout")) else { return };
    for step in 0..20 {
        let after = format!("0.{:05}", step * step * 5 + 1);
        let job = Job::new("static, killed", &program).words("32").behind(timeout.clone(), &["-s", "KILL", &after]);
        let outcome = limited(&job, 32);
        assert!([0, 137].contains(&outcome.status) && outcome.left.is_empty(), "after {after} s: {outcome:?}");
    }
}
