//! mlock and its family return what they return natively, with each kind of limit and privilege: programs say so, and decide by
//! it.

use crate::check::ends_well;
use crate::machine::{native_only, tool, turn_beside};
use crate::measure::{Limit, Swap};
use crate::programs::job;

/// A sixteenth of it, up to which locks are honoured, is less than most of the program's locks.
const LIMIT: Limit = Limit { ram: 40 << 20, swap: Swap::Ram };

fn same_results(label: &str, limit: &str, has_capability: bool) {
    let Some(_turn) = turn_beside() else { return };
    let (Some(job), Some(prlimit), Some(setpriv)) = (job(label, "mlock_cases", "64"), tool("prlimit"), tool("setpriv")) else {
        return;
    };
    let mut job = job.behind(prlimit, &[&format!("--memlock={limit}")]);
    if !has_capability {
        job = job.behind(setpriv, &["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]);
    }
    let native = job.native();
    assert!(ends_well(&native), "{label}: the native run is unsound: {native:?}");
    if native_only() {
        return;
    }
    let limited = job.limited(&LIMIT);
    let differ: Vec<_> =
        native.stdout.lines().zip(limited.stdout.lines()).filter(|(native, limited)| native != limited).collect();
    assert!(differ.is_empty(), "{label}: natively, and under lowtide: {differ:#?}");
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{label}: {}", limited.stderr);
    assert!(limited.stat("evictions.pages") > 0.0, "{label}: nothing was evicted: {}", limited.stats);
}

#[test]
fn with_the_capability() {
    same_results("mlock with CAP_IPC_LOCK", "8388608", true);
}

#[test]
fn nothing_may_be_locked() {
    same_results("mlock, limit 0", "0", false);
}

#[test]
fn one_page_may_be_locked() {
    same_results("mlock, limit 4 KiB", "4096", false);
}

/// Nearly all locks are honoured by lowtide, and few by the kernel.
#[test]
fn little_may_be_locked() {
    same_results("mlock, limit 64 KiB", "65536", false);
}

/// Most locks that succeed are ignored by lowtide: they count towards the limit as if they were not.
#[test]
fn a_part_may_be_locked() {
    same_results("mlock, limit 8 MiB", "8388608", false);
}
