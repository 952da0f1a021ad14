//! The handshake of a fork: a parent serves the memory of its child until the child can do so itself, and not a moment longer. Two
//! processes on a word of shared memory, which is zero at first; either may be killed at any instruction, which is for others to find out.
//!
//! The child says that it is ready; the parent, which may have stopped waiting by then, says that it has let go. What the parent did to the
//! child's memory happened before that, and what the child does with it comes after.

use crate::sync::atomic::{AtomicU32, Ordering};

const BEGUN: u32 = 0;
const READY: u32 = 1;
const CLOSED: u32 = 2;

/// The state of a fork, in memory that parent and child share. All-zero bytes are one that has just begun.
#[derive(Debug)]
#[repr(transparent)]
pub struct Handshake(AtomicU32);

impl Handshake {
    /// What the word is while the child waits for the parent to let go.
    pub const READY: u32 = READY;

    /// The word, to wait for changes of (a shared futex).
    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Child: it can take over. No effect if the parent has let go already.
    pub fn ready(&self) {
        let _ = self.0.compare_exchange(BEGUN, READY, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Parent: whether the child can take over.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Acquire) == READY
    }

    /// Parent: it has let go, and never touches the child's memory again.
    pub fn close(&self) {
        // Release: pairs with the Acquire in `is_closed`. A swap, so that nobody's word can come after it.
        self.0.swap(CLOSED, Ordering::AcqRel);
    }

    /// Child: whether its memory is its own.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) == CLOSED
    }

    /// Whether nothing has been said yet.
    pub fn has_just_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed) == BEGUN
    }
}

/// All orders of events of a parent that gives up waiting after a round or two and a child that takes its time; and the same with a step
/// missing, which has to fail.
#[cfg(all(test, feature = "loom"))]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;
    use std::sync::Arc;

    struct Fork {
        handshake: Handshake,
        /// The child's memory: loom finds two that use it at the same time.
        memory: UnsafeCell<u32>,
    }

    // SAFETY: that the two never use it at the same time is what is checked.
    unsafe impl Sync for Fork {}
    // SAFETY: as above.
    unsafe impl Send for Fork {}

    /// What the child does when it is there; whether it finds that its memory is its own. (If not, it would look again.)
    type Child = fn(&Handshake) -> bool;

    fn by_the_rules(handshake: &Handshake) -> bool {
        handshake.ready();
        handshake.is_closed()
    }

    fn without_waiting(handshake: &Handshake) -> bool {
        handshake.ready();
        true
    }

    /// A parent that has let go is never heard of.
    fn saying_so_whatever_was_said(handshake: &Handshake) -> bool {
        handshake.0.store(READY, Ordering::Release);
        handshake.is_closed()
    }

    fn check(child: Child) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound.get_or_insert(3);
        model.max_branches = 10_000;
        model.check(move || {
            let fork = Arc::new(Fork { handshake: Handshake(AtomicU32::new(BEGUN)), memory: UnsafeCell::new(0) });
            let served = fork.clone();
            let child = thread::spawn(move || {
                if child(&served.handshake) {
                    // SAFETY: see the type.
                    served.memory.with_mut(|memory| unsafe { *memory += 1 });
                }
            });
            // The parent.
            for _ in 0..2 {
                if fork.handshake.is_ready() {
                    break;
                }
                // SAFETY: see the type.
                fork.memory.with_mut(|memory| unsafe { *memory += 1 });
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
    #[should_panic]
    fn a_child_that_does_not_wait_is_found() {
        check(without_waiting);
    }

    #[test]
    #[should_panic]
    fn a_child_that_waits_for_ever_is_found() {
        check(saying_so_whatever_was_said);
    }
}
