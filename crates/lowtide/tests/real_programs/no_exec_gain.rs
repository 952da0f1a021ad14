//! Where no memory may be made executable, as for a service with MemoryDenyWriteExecute=: the C library's code is changed
//! without that, in one of two ways, or not at all. (Were it made writable and could not be made executable again, each program would crash at its
//! start.)

use crate::check::ends_well;
use crate::machine::{native_only, turn};
use crate::measure::{Limit, Swap};
use crate::programs::{compiled, job};

const LIMIT: Limit = Limit { ram: 40 << 20, swap: Swap::Ram };
/// What is said when there are no hooks.
const NO_HOOKS: &str = "new mappings are looked for";

/// Runs a program for which `kind` of rules hold, and for lowtide too if they are made around it. Checks all but how often it
/// is said that there are no hooks, which is returned.
fn warnings(label: &str, kind: &str, around: bool) -> Option<usize> {
    let _turn = turn()?;
    let launcher = compiled("no_exec_gain")?;
    let job = job(label, "one_malloc", "96 zt")?;
    let job = if around { job.around(launcher, &[kind]) } else { job.behind(launcher, &[kind]) };
    let native = job.native();
    assert!(ends_well(&native), "{label}: the native run is unsound: {native:?}");
    if native_only() {
        return None;
    }
    let limited = job.limited(&LIMIT);
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{label}: {}", limited.stderr);
    assert!(limited.stat("evictions.pages") > 0.0, "{label}: nothing was evicted: {}", limited.stats);
    Some(limited.stderr.matches(NO_HOOKS).count())
}

#[test]
fn by_prctl() {
    for around in [true, false] {
        assert_eq!(warnings("PR_SET_MDWE", "mdwe", around).unwrap_or(0), 0);
    }
}

#[test]
fn by_a_filter_of_system_calls() {
    for around in [true, false] {
        assert_eq!(warnings("MemoryDenyWriteExecute", "filter", around).unwrap_or(0), 0);
    }
}

/// As on kernels that forbid to write code by /proc/self/mem: a changed copy is mapped in its place.
#[test]
fn without_proc_self_mem() {
    for kind in ["mdwe,read-only-proc", "filter,read-only-proc"] {
        for around in [true, false] {
            assert_eq!(warnings("MemoryDenyWriteExecute, no /proc/self/mem", kind, around).unwrap_or(0), 0, "{kind}");
        }
    }
}

/// No way is left: without hooks, and one warning says what that means.
#[test]
fn without_any_way_to_change_code() {
    for around in [true, false] {
        assert_eq!(warnings("no way to change code", "filter,read-only-proc,no-memfd", around).unwrap_or(1), 1);
    }
}

/// The protection of the code can be changed and changed back: hooks as usual.
#[test]
fn without_proc_self_mem_only() {
    for around in [true, false] {
        assert_eq!(warnings("read-only /proc", "read-only-proc", around).unwrap_or(0), 0);
    }
}
