//! Pages that stay in memory while a thread lives: at its end the kernel uses them without waiting
//! for a userfaultfd (PF_EXITING is set before `exit_mm` in Linux's `do_exit`), and silently skips
//! what it can't reach.
//!
//! A table of sets like a CPU's cache, without a lock: threads of the program add entries, and
//! threads that detach pages remove stale ones.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use lowtide_core::vm::{self, Mapping, OnFork};
use rustix::io::Errno;

use crate::pagemap::ids::PageNo;
use crate::pager::Pager;

const SETS: usize = 4096;
/// A cache line.
const WAYS: usize = 8;
/// Linux's PID_MAX_LIMIT.
const THREAD_BITS: u32 = 22;

type Set = [AtomicU64; WAYS];

#[derive(Debug)]
pub(crate) struct Held {
    memory: Mapping,
}

/// What became of a request to hold a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It is held from now on.
    Begun,
    /// It was held before.
    Known,
    /// There is no room for it.
    Refused,
}

/// 0: an empty place. None: no such page or thread can exist.
fn entry(page: PageNo, thread: u32) -> Option<u64> {
    let fits = page.raw() != 0 && page.raw() >> (u64::BITS - THREAD_BITS) == 0 && thread >> THREAD_BITS == 0;
    fits.then(|| page.raw() << THREAD_BITS | u64::from(thread))
}

fn thread_of(entry: u64) -> u32 {
    (entry & ((1 << THREAD_BITS) - 1)) as u32
}

impl Held {
    /// An empty table.
    ///
    /// # Errors
    /// `NOMEM`.
    pub(crate) fn new() -> Result<Held, Errno> {
        Ok(Held { memory: vm::map(SETS * size_of::<Set>(), OnFork::Copy)? })
    }

    fn sets(&self) -> &[Set; SETS] {
        // SAFETY: page-aligned, of this size; zeros are empty entries. All references to it are to
        // atomics.
        unsafe { &*self.memory.as_ptr().cast() }
    }

    fn set(&self, page: PageNo) -> &Set {
        // Stacks lie at equal distances: Fibonacci hashing.
        let hash = page.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SETS.ilog2());
        &self.sets()[hash as usize]
    }

    fn hold(&self, page: PageNo, thread: u32, lives: impl Fn(u32) -> bool) -> Hold {
        let Some(new) = entry(page, thread) else { return Hold::Refused };
        let set = self.set(page);
        if set.iter().any(|way| way.load(Ordering::Relaxed) == new) {
            return Hold::Known;
        }
        // `lives` takes a system call. Once more in the end: another thread may have removed an
        // entry.
        for frees in [false, true, false] {
            for way in set {
                let old = way.load(Ordering::Relaxed);
                let is_free = old == 0 || frees && !lives(thread_of(old));
                if is_free && way.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    return Hold::Begun;
                }
            }
        }
        Hold::Refused
    }

    /// Also removes entries of threads that are gone.
    fn holds(&self, page: PageNo, lives: impl Fn(u32) -> bool) -> bool {
        self.set(page).iter().any(|way| {
            let old = way.load(Ordering::Relaxed);
            if old >> THREAD_BITS != page.raw() || old == 0 {
                return false;
            }
            if lives(thread_of(old)) {
                return true;
            }
            let _ = way.compare_exchange(old, 0, Ordering::Relaxed, Ordering::Relaxed);
            false
        })
    }

    pub(crate) fn reset_after_fork(&self) {
        for way in self.sets().iter().flatten().filter(|way| way.load(Ordering::Relaxed) != 0) {
            way.store(0, Ordering::Relaxed);
        }
    }
}

impl Pager {
    /// Keeps the page at `addr` in memory while `thread` lives. The caller touches it afterwards:
    /// it may be out, even if known. For threads of the program, too: takes nothing.
    pub fn hold(&self, addr: usize, thread: u32) -> Hold {
        let hold = self.mappings.held.hold(PageNo::of(addr), thread, self.host.has_thread);
        // SeqCst: pairs with the one in `see_held`. A thread that detaches pages either sees the
        // entry, or has the space lock now.
        fence(Ordering::SeqCst);
        self.pages.space.outlast_exclusive();
        hold
    }

    /// Before pages are detached, with the space lock taken alone: from here on [`Pager::is_held`]
    /// knows all held pages, and [`Pager::kept`] all kept ones.
    pub(crate) fn see_held(&self) {
        // SeqCst: pairs with the one in `hold`.
        fence(Ordering::SeqCst);
    }

    /// Whether a page must stay for a thread.
    pub(crate) fn is_held(&self, page: PageNo) -> bool {
        self.mappings.held.holds(page, self.host.has_thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_page_is_held_while_one_of_its_threads_lives() {
        let held = Held::new().unwrap();
        let page = PageNo::new(0x0007_f123_4567);
        assert!(!held.holds(page, |_| true));
        assert_eq!(held.hold(page, 7, |_| true), Hold::Begun);
        assert_eq!(held.hold(page, 7, |_| true), Hold::Known);
        assert_eq!(held.hold(page, 8, |_| true), Hold::Begun);
        assert!(held.holds(page, |thread| thread == 8), "the other one has it still");
        assert!(!held.holds(page + 1, |_| true));
        assert!(!held.holds(page, |_| false));
        assert!(!held.holds(page, |_| true), "forgotten");
    }

    #[test]
    fn thousands_are_held_and_what_is_gone_makes_room() {
        let held = Held::new().unwrap();
        let stack = |i: usize| PageNo::new(0x0007_ffff_7ffe - i * 2049);
        let begun: Vec<bool> = (0..6000).map(|i| held.hold(stack(i), i as u32 + 1, |_| true) == Hold::Begun).collect();
        let count = begun.iter().filter(|begun| **begun).count();
        assert!(count > 5990, "{count}");
        for (i, begun) in begun.iter().enumerate() {
            assert_eq!(held.holds(stack(i), |_| true), *begun);
        }
        for i in 6000..30_000 {
            assert_ne!(held.hold(stack(i), i as u32 + 1, |thread| thread as usize + 4000 > i), Hold::Refused, "{i}");
        }
        held.reset_after_fork();
        assert!((0..30_000).all(|i| !held.holds(stack(i), |_| true)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let held = Held::new().unwrap();
        assert_eq!(held.hold(PageNo::new(0), 7, |_| true), Hold::Refused);
        assert_eq!(held.hold(PageNo::new(1 << 42), 7, |_| true), Hold::Refused);
        assert_eq!(held.hold(PageNo::new(1), 1 << THREAD_BITS, |_| true), Hold::Refused);
    }
}
