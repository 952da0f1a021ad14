//! Children that copy their parent's memory and were made past the C library's `fork`.

use crate::check::Growth;
use crate::machine::{native_only, turn, turn_beside};
use crate::measure::{Limit, Outcome, Swap};
use crate::programs::job;

const LIMIT: Limit = Limit { ram: 48 << 20, swap: Swap::Default };

/// A parent of 8 MiB whose child, made in this way, has 64 of its own. None: natively only.
fn child_of_64_mib(how: &str) -> Option<Outcome> {
    child_of(how, "64")
}

fn child_of(how: &str, sizes: &str) -> Option<Outcome> {
    let job = job(&format!("clones {how}"), "clones", &format!("{how} {sizes}"))?.with_forks();
    let native = job.native();
    assert!(native.status == 0, "{how}: {native:?}");
    if native_only() {
        return None;
    }
    let limited = job.limited(&LIMIT);
    assert_eq!((limited.status, &limited.stdout), (native.status, &native.stdout), "{how}: {}", limited.stderr);
    Some(limited)
}

/// By the C library's `clone` and `syscall`: limited from the beginning.
#[test]
fn what_clone_makes_is_limited_as_what_fork_makes() {
    let Some(_turn) = turn() else { return };
    for how in ["clone", "syscall", "fork", "clone3", "stack", "user", "files", "ids", "tls", "exits"] {
        // Of the parent's, too, a part is out.
        let Some(limited) = child_of(how, "32 56") else { return };
        let bound = Growth::Forks.bound(LIMIT.ram);
        assert!(limited.peak <= bound, "{how}: peak {} bytes, allowed {bound}: {}", limited.peak, limited.stderr);
        assert!(limited.stat("evictions.pages") > 0.0, "{how}: {}", limited.stats);
        assert!(!limited.stderr.contains("warning"), "{how}: {}", limited.stderr);
    }
}

/// The child of a parent whose memory is registered depends on it first, though it is another's child (CLONE_PARENT), or sees nothing
/// of it (CLONE_NEWPID).
#[test]
fn what_clone_makes_need_not_be_its_makers_child() {
    let Some(_turn) = turn_beside() else { return };
    // (What looks for its parent does so only while that is late.)
    for how in ["parent", "parent", "parent", "pid"] {
        let Some(limited) = child_of(how, "32 56") else { return };
        assert!(limited.stat("evictions.pages") > 0.0, "{how}: {}", limited.stats);
    }
}

/// By a bare instruction: found, and entered.
#[test]
fn what_a_bare_clone_makes_is_found_and_limited() {
    let Some(_turn) = turn() else { return };
    for how in ["bare", "bare-daemon", "bare-forks"] {
        let Some(limited) = child_of_64_mib(how) else { return };
        assert!(limited.stat("evictions.pages") > 0.0, "{how}: {}", limited.stats);
        // (That the child gets all of its parent's memory at first may pass the limit, which is said.)
        let others = limited.stderr.lines().filter(|line| line.contains("warning") && !line.contains("more than its limit of"));
        assert_eq!(others.count(), 0, "{how}: {}", limited.stderr);
    }
}

/// Its parent's userfaultfd, by which it could change that one's memory, is closed there.
#[test]
fn what_a_bare_clone_makes_loses_its_parents_userfaultfd() {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = job("clones descriptors", "clones", "bare-descriptors 64") else { return };
    let native = job.native();
    assert!(native.stdout.starts_with("the two are open"), "{native:?}");
    if !native_only() {
        let limited = job.limited(&LIMIT);
        assert_eq!((limited.status, limited.stdout), (0, native.stdout.replace("open", "closed")), "{}", limited.stderr);
    }
}

/// Where that can't be, it is said by name, and counted.
#[test]
fn what_can_not_be_limited_is_named_and_counted() {
    let Some(_turn) = turn() else { return };
    let Some(limited) = child_of_64_mib("bare-filtered") else { return };
    let warnings = limited.stderr.lines().filter(|line| line.contains("warning")).collect::<Vec<_>>();
    let is_named =
        |line: &str| line.contains("is not limited: it has set up a system call filter") && line.contains("(clones)");
    assert!(warnings.len() == 1 && is_named(warnings[0]), "{warnings:?}");
    assert!(limited.stat("ram_peak") > f64::from(64 << 20), "{}", limited.stats);
}

/// What shares the memory is none of it, and errors are the kernel's.
#[test]
fn clones_that_share_the_memory_pass() {
    let Some(_turn) = turn_beside() else { return };
    for how in ["shares", "shares-with-maker"] {
        let Some(job) = job(&format!("clones {how}"), "clones", how) else { return };
        let native = job.native();
        assert!(native.status == 0, "{native:?}");
        if !native_only() {
            let limited = job.limited(&LIMIT);
            assert_eq!((limited.status, &limited.stdout), (native.status, &native.stdout), "{how}: {}", limited.stderr);
            assert!(!limited.stderr.contains("warning"), "{how}: {}", limited.stderr);
        }
    }
}
