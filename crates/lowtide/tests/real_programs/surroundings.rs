//! Programs that change what surrounds them: descriptors, their children's LD_PRELOAD, which system calls there are.

use std::fs;

use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::{native_only, say, tool, turn, turn_beside};
use crate::measure::{Job, Limit, Swap};
use crate::programs::{compiled, job, library};

#[test]
fn closes_all_descriptors() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("closes all descriptors", "closes_files", "160") else { return };
    compare(&job, Growth::Existing, Data::Compressible, ends_well);
}

/// By every call that takes an environment: to Linux a null pointer is an empty one.
#[test]
fn executes_without_an_environment() {
    let Some(_turn) = turn() else { return };
    for call in ["execve", "execveat"] {
        let Some(job) = job(&format!("no environment, {call}"), "no_environment", &format!("{call} 160")) else { return };
        compare(&job, Growth::Existing, Data::Compressible, ends_well);
    }
}

/// A batch system's limit of address space (`ulimit -v`) is the program's to use: what lowtide reserves of it is little.
#[test]
fn a_limit_of_address_space() {
    const SCRIPT: &str = "import mmap\n\
        filled = bytearray(b'lowtide-') * (24 << 20)\n\
        reserved = [mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(96)]\n\
        assert filled == b'lowtide-' * (24 << 20)\n\
        print('OK')";
    let Some(_turn) = turn() else { return };
    let (Some(sh), Some(python)) = (tool("sh"), tool("python3")) else { return };
    let job = Job::new("limit of address space", python).args(["-c", SCRIPT]);
    let job = job.around(sh, &["-c", "ulimit -v 8000000; exec \"$@\"", "sh"]);
    compare(&job, Growth::Stream, Data::Compressible, ends_well);
}

/// The tables of a swap file, which is half of what is free on a disk, are no more of it.
#[test]
fn a_limit_of_address_space_and_a_large_disk() {
    const SCRIPT: &str = "import mmap\n\
        filled = bytearray(b'lowtide-') * (12 << 20)\n\
        reserved = [mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(15)]\n\
        assert filled == b'lowtide-' * (12 << 20)\n\
        print('OK')";
    let Some(_turn) = turn() else { return };
    let (Some(sh), Some(python)) = (tool("sh"), tool("python3")) else { return };
    let job = Job::new("little address space, a large disk", python).args(["-c", SCRIPT]);
    let job = job.around(sh, &["-c", "ulimit -v 1500000; exec \"$@\"", "sh"]);
    compare(&job, Growth::Stream, Data::Any, ends_well);
}

/// What a program may have of data (`ulimit -d`) is its own, and of little address space lowtide takes what it can do with; where
/// that is too little for both, the program has it, and it is said.
#[test]
fn limits_of_data_and_of_little_address_space() {
    const SCRIPT: &str = "d = {}\n\
        for i in range(700000): d[i * 7919 % 1000003] = ('v%d' % i, i)\n\
        print('OK', sum(d[k][1] for k in d), len(d))";
    let Some(_turn) = turn() else { return };
    let (Some(sh), Some(python)) = (tool("sh"), tool("python3")) else { return };
    for (ulimit, is_limited) in [("-d 260000", true), ("-d 2000000", true), ("-v 400000", true), ("-v 245000", false)] {
        let script = format!("ulimit {ulimit}; exec \"$@\"");
        let job = Job::new("limit of data", &python).args(["-c", SCRIPT]);
        for job in [
            job.around(sh.clone(), &["-c", &script, "sh"]),
            Job::new("limit of data inside", &sh).args(["-c", &script, "sh"]).args([
                python.to_str().expect("a path"),
                "-c",
                SCRIPT,
            ]),
        ] {
            let native = job.native();
            assert!(ends_well(&native), "{ulimit}: {native:?}");
            if native_only() {
                continue;
            }
            let outcome = job.limited(&Limit { ram: 100 << 20, swap: Swap::Default });
            assert!(ends_well(&outcome) && outcome.stdout == native.stdout && outcome.left.is_empty(), "{ulimit}: {outcome:?}");
            assert_eq!(outcome.stat("evictions.pages") > 10_000.0, is_limited, "{ulimit}: {outcome:?}");
            assert_eq!(outcome.stderr.contains("ulimit -v"), !is_limited, "{ulimit}: {}", outcome.stderr);
            assert!(!is_limited || outcome.peak < Growth::Stream.bound(100 << 20), "{ulimit}: {outcome:?}");
        }
    }
}

/// Where the kernel promises no memory that it does not have, what lowtide reserves is missing in all programs: it is little. For
/// the whole machine that would be a nuisance, so this is for guests (`tests/vm/vm`).
#[test]
fn where_the_kernel_promises_little() {
    let Some(_turn) = turn() else { return };
    if !fs::read_to_string("/proc/cmdline").is_ok_and(|line| line.contains("vm.second=")) {
        return say("  strict overcommit: for a guest, not for this machine");
    }
    let Some(job) = job("strict overcommit", "promises", "64 80 3") else { return };
    let _strict = Strict::new();
    compare(&job, Growth::Existing, Data::Compressible, ends_well);
    let outcome = job.limited(&Limit { ram: 32 << 20, swap: Swap::Default });
    assert!(ends_well(&outcome) && !outcome.stderr.contains("warning"), "{outcome:?}");
}

/// vm.overcommit_memory=2, as long as this lives.
struct Strict(Vec<(&'static str, String)>);

impl Strict {
    fn new() -> Strict {
        // The ratio first: with that of most machines what there is may be too much already.
        let settings = [("/proc/sys/vm/overcommit_ratio", "80"), ("/proc/sys/vm/overcommit_memory", "2")];
        let mut before = Strict(Vec::new());
        for (file, value) in settings {
            before.0.push((file, fs::read_to_string(file).expect("a setting")));
            fs::write(file, value).expect("set");
        }
        before
    }
}

impl Drop for Strict {
    fn drop(&mut self) {
        self.0.iter().rev().for_each(|(file, value)| fs::write(file, value).expect("put back"));
    }
}

#[test]
#[ignore = "takes long: make test-long"]
fn preloads_a_library_into_its_child() {
    let Some(_turn) = turn() else { return };
    let (Some(job), Some(library)) = (job("own LD_PRELOAD", "own_preload", "96"), library("harmless_preload")) else { return };
    compare(&job.args([library]), Growth::Stream, Data::Any, ends_well);
}

/// Where lowtide may not give memory back the limit can't be held, which is said; and no byte is wrong.
#[test]
fn without_madvise() {
    let Some(_turn) = turn_beside() else { return };
    let (Some(launcher), Some(job)) = (compiled("without_madvise"), job("without madvise", "one_malloc", "160 tz")) else {
        return;
    };
    let job = job.behind(launcher, &[]);
    let native = job.native();
    if native_only() {
        return;
    }
    let limited = job.limited(&Limit { ram: 64 << 20, swap: Swap::Ram });
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{}", limited.stderr);
    assert_eq!(limited.stderr.matches("may not give memory back").count(), 1, "{}", limited.stderr);
}
