//! Threads of the program that walk through the page map, without a lock ([`Pager::removal_ends`]): memory of it is given back
//! only while none does. By what is inside a hook this can't be told: a signal handler may have interrupted a thread there, and
//! look like one that has left. So a walk is not interrupted ([`Host::undisturbed`]), and counted.
//!
//! [`Pager::removal_ends`]: crate::pager::Pager::removal_ends
//! [`Host::undisturbed`]: crate::pager::Host::undisturbed

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::{Timespec, nanosleep};

const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// See above.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    under_way: AtomicU32,
    is_closed: AtomicBool,
}

impl Walks {
    /// Walks; first waits for who gives memory back, for as long as that takes.
    pub(crate) fn walk(&self, walk: impl FnOnce()) {
        loop {
            // SeqCst, here and in `none`: either this thread sees that memory is given back, or who does that sees this one.
            self.under_way.fetch_add(1, Ordering::SeqCst);
            if !self.is_closed.load(Ordering::SeqCst) {
                break;
            }
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            let _ = nanosleep(&NAP);
        }
        walk();
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// Calls `f` while nobody walks. False: somebody does. By one thread at a time.
    pub(crate) fn none(&self, f: impl FnOnce()) -> bool {
        self.is_closed.store(true, Ordering::SeqCst);
        let none = self.under_way.load(Ordering::SeqCst) == 0;
        if none {
            f();
        }
        self.is_closed.store(false, Ordering::SeqCst);
        none
    }

    /// In a forked child: its parent's other threads are not here. (The one that forks does not in a walk.)
    pub(crate) fn reset_after_fork(&self) {
        self.under_way.store(0, Ordering::Relaxed);
        self.is_closed.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_given_back_under_who_walks() {
        let walks = Walks::default();
        walks.walk(|| assert!(!walks.none(|| panic!("somebody walks"))));
        let walked = &AtomicBool::new(false);
        let walks = &walks;
        std::thread::scope(|scope| {
            assert!(walks.none(|| {
                scope.spawn(|| walks.walk(|| walked.store(true, Ordering::SeqCst)));
                for _ in 0..100 {
                    std::thread::yield_now();
                }
                assert!(!walked.load(Ordering::SeqCst));
            }));
        });
        assert!(walks.none(|| {}));
    }
}
