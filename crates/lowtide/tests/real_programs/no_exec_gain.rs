//! Where no memory may be made executable, as for a service with MemoryDenyWriteExecute=: the C library's code is changed
//! otherwise, or not at all. (Were it made writable and could not be made executable again, each program would crash at its
//! start.)

use std::fs;

use lowtide_config::proc::{self, Stat};

use crate::check::ends_well;
use crate::machine::{native_only, turn_beside};
use crate::measure::{Limit, Swap};
use crate::programs::{compiled, job};

const LIMIT: Limit = Limit { ram: 40 << 20, swap: Swap::Ram };
/// What is said when there are no hooks.
const NO_HOOKS: &str = "new mappings are looked for";

/// What was seen of a run.
struct Seen {
    /// How often it was said that there are no hooks.
    warnings: usize,
    /// A copy of code was mapped.
    is_copied: bool,
}

/// Runs a program for which `kind` of rules hold, and for lowtide too if they are made `around` it. Checks all else.
fn seen(label: &str, kind: &str, around: bool) -> Option<Seen> {
    let _turn = turn_beside()?;
    let launcher = compiled("no_exec_gain")?;
    let job = job(label, "one_malloc", "96 zt")?;
    let job = if around { job.around(launcher, &[kind]) } else { job.behind(launcher, &[kind]) };
    let native = job.native();
    assert!(ends_well(&native), "{label}: the native run is unsound: {native:?}");
    if native_only() {
        return None;
    }
    let mut run = job.start_limited(&LIMIT);
    let maps = |pid: u32| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let has_copy = |process: &Stat| maps(process.pid).contains("/memfd:lowtide-code");
    let is_copied = run.wait_until(|run| proc::of_session(run.session).iter().any(has_copy));
    let limited = run.finish();
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{label}: {}", limited.stderr);
    assert!(limited.stat("evictions.pages") > 0.0, "{label}: nothing was evicted: {}", limited.stats);
    Some(Seen { warnings: limited.stderr.matches(NO_HOOKS).count(), is_copied })
}

/// There are hooks, in whatever way.
fn has_hooks(label: &str, kind: &str) {
    for around in [true, false] {
        if let Some(seen) = seen(label, kind, around) {
            assert_eq!(seen.warnings, 0);
        }
    }
}

#[test]
fn by_prctl() {
    has_hooks("PR_SET_MDWE", "mdwe");
}

#[test]
fn by_a_filter_of_system_calls() {
    has_hooks("MemoryDenyWriteExecute", "filter");
}

/// The protection of the code can be changed and changed back: hooks as usual.
#[test]
fn without_proc_self_mem_only() {
    has_hooks("read-only /proc", "read-only-proc");
}

/// As on kernels that forbid to write code by /proc/self/mem: a changed copy is mapped in its place.
#[test]
fn without_proc_self_mem() {
    for (kind, around) in [("mdwe", true), ("mdwe", false), ("filter", true), ("filter", false)] {
        let Some(seen) = seen("no write to code", &format!("{kind},read-only-proc"), around) else { return };
        assert!(seen.is_copied && seen.warnings == 0, "{kind}: copied: {}, {} warnings", seen.is_copied, seen.warnings);
    }
}

/// No way is left: without hooks, and one warning says what that means.
#[test]
fn without_any_way_to_change_code() {
    // Around lowtide only what it can do without: it needs memory files itself.
    for (kind, around) in [("no-memfd", true), ("no-memfd", false), ("no-files", false)] {
        let Some(seen) = seen("no way to change code", &format!("filter,read-only-proc,{kind}"), around) else { return };
        assert!(!seen.is_copied && seen.warnings == 1, "{kind}: copied: {}, {} warnings", seen.is_copied, seen.warnings);
    }
}
