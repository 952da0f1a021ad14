//! What programs without hooks do with signals, stacks, children and system call filters of their own, while their pages come and go:
//! no call fails, no signal is lost, and none is lowtide's.

use crate::check::{Growth, ends_well};
use crate::machine::{native_only, turn_beside};
use crate::measure::{Job, Limit, Swap};
use crate::programs::{compiled_statically, with_musl};
use crate::without_hooks::may_be_followed;

/// In the processes' memory: twice the limit.
const MIB: u64 = 48;
const RAM: u64 = 24 << 20;

fn is_right(case: &str) {
    // (What it takes at most is all that it has, with lowtide's share: that is no bound of a rate.)
    let Some(_turn) = turn_beside() else { return };
    for (kind, program) in [("static", compiled_statically("signal_cases")), ("musl", with_musl("signal_cases", true))] {
        let Some(program) = program else { return };
        let name = format!("signal case {case} {kind}");
        let job = |words: &str| Job::new(&name, &program).words(&format!("{case} {MIB}{words}"));
        let native = job("").native();
        assert!(ends_well(&native), "{native:?}");
        if native_only() {
            continue;
        }
        let outcome = job(" paged").limited(&Limit { ram: RAM, swap: Swap::Default });
        assert!(outcome.status == 0 && outcome.stdout == native.stdout && outcome.left.is_empty(), "{kind}: {outcome:?}");
        assert!(!may_be_followed() || !outcome.stderr.contains("warning"), "{kind}: {}", outcome.stderr);
        assert!(outcome.stat("evictions.pages") > (RAM >> 12) as f64, "{kind}: {}", outcome.stats);
        assert!(outcome.peak < Growth::Stream.bound(RAM), "{kind}: {outcome:?}");
    }
}

macro_rules! cases {
    ($($case:ident)+) => { $(#[test] fn $case() { is_right(stringify!($case)) })+ };
}

cases! {
    // All signals are blocked; and the mask is what the program has set.
    blocked mask_is_kept
    // The signal that system call filters raise is the program's.
    sigsys_handled sigsys_default sigsys_ignored
    // In a handler, and in a call that lets one signal in.
    all_blocked_in_handler all_blocked_but_one
    // A handler's stack may be out; one that is too small for any frame is left alone.
    on_alternate_stack small_alternate_stack
    // vfork, posix_spawn and system, clone with and without the parent's memory, threads.
    borrows borrows_beside_alternate_stack spawns clone_with_memory clone_on_stack small_threads
    // Signals at any moment, whose handlers return or do not.
    storm jumps_out
    // System call filters of the program's.
    own_filter own_traps allows_little
    // System calls of 32-bit code.
    calls_as_32_bit
}
