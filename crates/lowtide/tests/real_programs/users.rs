//! Programs that become another user: what they execute and what they fork is limited all the same, and sees no difference.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::check::{Data, Growth, compare, ends_well, faults, report};
use crate::machine::{Turn, native_only, skip, tool, turn};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::{compiled, compiled_statically, copy_program, job};

/// What makes a program another user's.
const AS_OTHER: [&str; 3] = ["--reuid=1234", "--regid=1234", "--clear-groups"];

fn turn_of_root() -> Option<Turn> {
    if !rustix::process::geteuid().is_root() {
        skip("only root can become another user");
        return None;
    }
    turn()
}

/// Programs where every user can execute them.
struct Reachable(tempfile::TempDir);

impl Reachable {
    fn new() -> Reachable {
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        Reachable(directory)
    }

    fn copy(&self, program: &Path) -> PathBuf {
        let to = self.0.path().join(program.file_name().expect("a name"));
        copy_program(program, &to);
        to
    }
}

/// As `compare`, and nobody complains.
fn compare_in_silence(job: &Job) {
    let native = job.native();
    assert!(ends_well(&native), "{}: the native run is unsound: {native:?}", job.name);
    if native_only() {
        return;
    }
    // Of the native peak nothing is seen where `su` makes a session of its own.
    let limit = Limit { ram: 40 << 20, swap: Swap::Default };
    let limited = job.limited(&limit);
    report(job, &limit, &native, &limited);
    let faults = faults(&native, &limited, &limit, Growth::Existing);
    assert!(faults.is_empty(), "{}: {faults:?}; standard error: {}", job.name, limited.stderr);
    assert!(is_silent(&limited), "{}: {}", job.name, limited.stderr);
    let peak = limited.stat("ram_peak") as u64;
    assert!((limit.ram / 2..Growth::Stream.bound(limit.ram)).contains(&peak), "{}: as counted: {peak}", job.name);
}

/// Nothing but the summary.
fn is_silent(outcome: &Outcome) -> bool {
    outcome.stderr.lines().all(|line| line.starts_with("lowtide: ram peak"))
}

#[test]
fn a_program_that_another_one_starts_as_another_user() {
    let Some(_turn) = turn_of_root() else { return };
    let (Some(setpriv), Some(program)) = (tool("setpriv"), compiled("one_malloc")) else { return };
    let place = Reachable::new();
    let program = place.copy(&program);
    compare_in_silence(&Job::new("another user, setpriv", &program).args(["96"]).behind(setpriv, &AS_OTHER));
    let Some(su) = tool("su") else { return };
    // It is setuid, and as such can't be the program itself.
    let line = format!("{} -s /bin/sh nobody -c '{} 96; {} 80'", su.display(), program.display(), program.display());
    compare_in_silence(&Job::new("another user, su", "/bin/sh").args(["-c", &line]));
}

/// The agent can't be preloaded into the one in the middle, and so it can't do anything for the program that this one executes.
#[test]
fn static_programs_in_between() {
    let Some(_turn) = turn_of_root() else { return };
    let Some(setpriv) = tool("setpriv") else { return };
    let (Some(program), Some(between)) = (compiled("one_malloc"), compiled_statically("executes")) else { return };
    let place = Reachable::new();
    let (program, between, env) = (place.copy(&program), place.copy(&between), PathBuf::from("/usr/bin/env"));
    compare_in_silence(&Job::new("static between", &program).args(["96"]).behind(between.clone(), &[]).behind(env, &[]));
    let job = Job::new("static between, another user", &program).args(["96"]).behind(between, &[]);
    compare_in_silence(&job.behind(setpriv, &AS_OTHER));
}

#[test]
fn what_is_executed_sees_the_same_descriptors_and_environment() {
    let Some(_turn) = turn_of_root() else { return };
    let Some(program) = compiled("changes_user") else { return };
    let place = Reachable::new();
    let job = Job::new("another user, execs", place.copy(&program)).words("execs 96");
    compare_in_silence(&job);
}

/// `ulimit -u` counts lowtide's threads too (not root's). Where none may be started the process is not limited, which is said, and
/// it is as soon as one may.
#[test]
fn where_no_more_threads_may_be_started() {
    let Some(_turn) = turn_of_root() else { return };
    let (Some(setpriv), Some(program)) = (tool("setpriv"), compiled("changes_user")) else { return };
    let place = Reachable::new();
    let job = Job::new("no more threads", place.copy(&program)).words("alone 96").behind(setpriv, &AS_OTHER);
    if native_only() {
        return;
    }
    let limited = job.limited(&Limit { ram: 48 << 20, swap: Swap::Ram });
    assert_eq!((limited.status, limited.stdout.as_str()), (0, "OK alone\n"), "{}", limited.stderr);
    assert_eq!(limited.stderr.matches("can be started, error 11").count(), 1, "{}", limited.stderr);
    assert!(limited.stat("evictions.pages") > 10_000.0, "it was limited later: {limited:?}");
}

#[test]
#[ignore = "takes long: make test-long"]
fn forks_after_the_user_changed() {
    let Some(_turn) = turn_of_root() else { return };
    let Some(job) = job("another user, forks", "changes_user", "forks 96") else { return };
    // As in `forks.rs`: children that stay.
    compare(&job, Growth::Stream, Data::Any, ends_well);
}

/// In another network namespace the supervisor's socket is not to be found.
#[test]
fn where_lowtide_cannot_be_reached() {
    let Some(_turn) = turn_of_root() else { return };
    let (Some(setpriv), Some(unshare)) = (tool("setpriv"), tool("unshare")) else { return };
    if native_only() {
        return;
    }
    let script = "true; echo ${LD_PRELOAD-none} ${LOWTIDE_SEGMENT-none}; ls /; exec ls /";
    let job = Job::new("another user, another network", "/bin/sh").args(["-c", script]).behind(setpriv, &AS_OTHER);
    let job = job.behind(unshare, &["--net"]);
    let native = job.native();
    if native.status != 0 {
        skip("network namespaces can't be made here");
        return;
    }
    let limited = job.limited(&Limit { ram: 64 << 20, swap: Swap::Ram });
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{}", limited.stderr);
    assert!(limited.stdout.starts_with("none none\n"), "{}", limited.stdout);
    let lines: Vec<&str> = limited.stderr.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("warning") && lines[0].contains("not limited"), "{lines:?}");
}

/// By its own pid `lowtide run` would take it for another process, or for none, and count it no more.
#[test]
fn in_another_pid_namespace() {
    let Some(_turn) = turn_of_root() else { return };
    let (Some(unshare), Some(program)) = (tool("unshare"), compiled("one_malloc")) else { return };
    compare_in_silence(&Job::new("another pid namespace", &program).args(["96"]).behind(unshare.clone(), &["--pid", "--fork"]));
    // The shell is the first process there, and what it starts the second.
    let line = format!("{} 96; true", program.display());
    let job = Job::new("another pid namespace, second", "/bin/sh").args(["-c", &line]);
    compare_in_silence(&job.behind(unshare, &["--pid", "--fork"]));
}
