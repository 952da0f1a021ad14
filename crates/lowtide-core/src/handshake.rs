//! The handshake of a fork: a parent serves its child's memory until the child can. They use a word
//! of shared memory, zero at first; either may be killed at any instruction.
//!
//! The child becomes ready, or wants all of its memory at once; the parent, which may have stopped
//! waiting, closes. The parent's changes to the child's memory precede that, and the child's use
//! follows. Unless the child was ready, all of its memory is there.
//!
//! Changes release and reads acquire: `ready` pairs with `is_ready`, `want_all` with `wants_all`,
//! `close` with `is_closed` and with a late exchange of the child's.

use crate::sync::atomic::{AtomicU32, Ordering};

const BEGUN: u32 = 0;
const READY: u32 = 1;
const CLOSED: u32 = 2;
const WANTS_ALL: u32 = 3;

/// The state of a fork, in shared memory. All-zero bytes are the initial state.
#[derive(Debug)]
#[repr(transparent)]
pub struct Handshake(AtomicU32);

impl Handshake {
    /// The word, a shared futex.
    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Child: it can take over. No effect after [`Handshake::close`].
    pub fn ready(&self) {
        let _ = self.0.compare_exchange(BEGUN, READY, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Child: it needs all of its memory before the parent closes. No effect afterwards.
    pub fn want_all(&self) {
        let _ = self.0.compare_exchange(BEGUN, WANTS_ALL, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Parent: whether the child needs all.
    pub fn wants_all(&self) -> bool {
        self.0.load(Ordering::Acquire) == WANTS_ALL
    }

    /// Parent: whether the child can take over.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Acquire) == READY
    }

    /// Parent: never touches the child's memory again.
    pub fn close(&self) {
        // Release: pairs with the Acquire in `is_closed`. A swap, so that no exchange follows.
        self.0.swap(CLOSED, Ordering::AcqRel);
    }

    /// Child: whether its memory is its own.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) == CLOSED
    }

    /// Whether neither side has changed the word.
    pub fn has_just_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed) == BEGUN
    }
}

/// Variants with a step missing must fail.
#[cfg(all(test, feature = "loom"))]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;
    use std::sync::Arc;

    struct Fork {
        handshake: Handshake,
        /// Whether the child's memory is whole; loom detects concurrent use.
        memory: UnsafeCell<bool>,
    }

    // SAFETY: loom detects concurrent use.
    unsafe impl Sync for Fork {}
    // SAFETY: as above.
    unsafe impl Send for Fork {}

    /// Returns, if the memory is the child's own, whether it relies on all of it.
    type Child = fn(&Handshake) -> Option<bool>;

    fn by_the_rules(handshake: &Handshake) -> Option<bool> {
        handshake.ready();
        handshake.is_closed().then_some(false)
    }

    fn that_wants_all(handshake: &Handshake) -> Option<bool> {
        handshake.want_all();
        handshake.is_closed().then_some(true)
    }

    fn without_waiting(handshake: &Handshake) -> Option<bool> {
        handshake.ready();
        Some(false)
    }

    fn that_changes_its_mind(handshake: &Handshake) -> Option<bool> {
        handshake.ready();
        that_wants_all(handshake)
    }

    fn saying_so_whatever_was_said(handshake: &Handshake) -> Option<bool> {
        handshake.0.store(READY, Ordering::Release);
        handshake.is_closed().then_some(false)
    }

    fn check(child: Child) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound.get_or_insert(3);
        model.max_branches = 10_000;
        model.check(move || {
            let fork = Arc::new(Fork { handshake: Handshake(AtomicU32::new(BEGUN)), memory: UnsafeCell::new(false) });
            let served = fork.clone();
            let child = thread::spawn(move || {
                if let Some(relies_on_all) = child(&served.handshake) {
                    // SAFETY: see the type.
                    let all = served.memory.with_mut(|memory| unsafe { *memory });
                    assert!(all || !relies_on_all, "the child takes for whole what is not");
                }
            });
            let mut is_ready = false;
            for _ in 0..2 {
                is_ready = fork.handshake.is_ready();
                if is_ready || fork.handshake.wants_all() {
                    break;
                }
                // SAFETY: see the type.
                fork.memory.with_mut(|memory| unsafe { *memory = false });
            }
            if !is_ready {
                // SAFETY: see the type.
                fork.memory.with_mut(|memory| unsafe { *memory = true });
            }
            fork.handshake.close();
            child.join().unwrap();
            assert!(fork.handshake.is_closed(), "the child looks again for ever");
        });
    }

    #[test]
    fn the_memory_of_a_child_is_one_process_at_a_time() {
        check(by_the_rules);
    }

    #[test]
    fn a_child_that_wants_all_of_its_memory_gets_it() {
        check(that_wants_all);
    }

    #[test]
    #[should_panic]
    fn a_child_that_does_not_wait_is_found() {
        check(without_waiting);
    }

    #[test]
    #[should_panic]
    fn a_child_that_changes_its_mind_is_found() {
        check(that_changes_its_mind);
    }

    #[test]
    #[should_panic]
    fn a_child_that_waits_for_ever_is_found() {
        check(saying_so_whatever_was_said);
    }
}
