//! Walks of the program's threads through the page map, without a lock ([`Pager::removal_ends`]):
//! its memory is freed only while there are none. Hooks can't be counted so: a signal handler may
//! have interrupted one. Walks run undisturbed ([`Host::undisturbed`]).
//!
//! [`Pager::removal_ends`]: crate::pager::Pager::removal_ends
//! [`Host::undisturbed`]: crate::pager::Host::undisturbed

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::{Timespec, nanosleep};

const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

#[derive(Debug, Default)]
pub(crate) struct Walks {
    under_way: AtomicU32,
    is_closed: AtomicBool,
}

impl Walks {
    /// Waits first for a thread that frees memory.
    pub(crate) fn walk(&self, walk: impl FnOnce()) {
        loop {
            // SeqCst, here and in `none`: either this thread sees `is_closed`, or the thread that
            // frees memory sees this one.
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

    /// By one thread at a time. False: a thread walks.
    pub(crate) fn none(&self, f: impl FnOnce()) -> bool {
        self.is_closed.store(true, Ordering::SeqCst);
        let none = self.under_way.load(Ordering::SeqCst) == 0;
        if none {
            f();
        }
        self.is_closed.store(false, Ordering::SeqCst);
        none
    }

    /// In a forked child. (No thread forks during a walk.)
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
