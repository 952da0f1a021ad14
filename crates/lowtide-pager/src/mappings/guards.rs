//! Guards (MADV_GUARD_INSTALL) that one thread makes while another's fault is served. Zeros come in
//! up to the next guard, but a COPY (Linux 6.18) silently replaces a guard made since the look.
//!
//! So [`Guards::make`] counts calls, and a touch notices one at its end ([`Guards::end_look`]),
//! under the space lock. A MADV_DONTNEED of the range follows the call: its event is read under the
//! exclusive lock, so older touches have ended, and it drops pages that replaced guards. If a touch
//! has met the call ([`Guards::were_met`]), it is made again.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const MOST: usize = 16;

/// Threads that make guards, and touches that met one. No thread waits here.
#[derive(Debug, Default)]
pub struct Guards {
    /// Thread ids; 0: none.
    makers: [AtomicU32; MOST],
    /// Calls without a place.
    others: AtomicUsize,
    begun: AtomicUsize,
    met: AtomicUsize,
}

/// The touches that had met a call before one was made.
#[derive(Debug, Clone, Copy)]
pub struct Made(usize);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen(usize, bool);

impl Guards {
    /// Makes guards by `call`, of thread `who`. By threads of the program.
    pub fn make<T>(&self, who: u32, call: impl FnOnce() -> T) -> (T, Made) {
        // SeqCst, here and below: pairs with those in `begin_look` and `end_look`. A look from
        // before this call's end sees, at its own end at the latest, that the call had begun; then
        // `were_met` sees that it was met.
        let before = Made(self.met.load(Ordering::SeqCst));
        let place =
            self.makers.iter().find(|place| place.compare_exchange(0, who, Ordering::SeqCst, Ordering::Relaxed).is_ok());
        if place.is_none() {
            self.others.fetch_add(1, Ordering::SeqCst);
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        let result = call();
        match place {
            Some(place) => self.free(place, who),
            None => drop(self.others.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |others| others.checked_sub(1))),
        }
        (result, before)
    }

    fn free(&self, place: &AtomicU32, who: u32) {
        let _ = place.compare_exchange(who, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// A signal handler has left the thread's call by longjmp.
    pub fn forget(&self, who: u32) {
        self.makers.iter().for_each(|place| self.free(place, who));
    }

    /// Whether a touch has met a call since. Valid after the call's MADV_DONTNEED.
    pub fn were_met(&self, since: Made) -> bool {
        // SeqCst: pairs with the count in `end_look`.
        self.met.load(Ordering::SeqCst) != since.0
    }

    pub(crate) fn any(&self) -> bool {
        // SeqCst: pairs with the count in `make`.
        self.begun.load(Ordering::SeqCst) != 0
    }

    /// With the space lock shared until [`Guards::end_look`].
    pub(crate) fn begin_look(&self) -> Seen {
        // SeqCst: pairs with those in `make`. Later calls change the count; earlier ones are under
        // way or have ended.
        let begun = self.begun.load(Ordering::SeqCst);
        let is_made = |place: &AtomicU32| place.load(Ordering::SeqCst) != 0;
        Seen(begun, self.others.load(Ordering::SeqCst) > 0 || self.makers.iter().any(is_made))
    }

    pub(crate) fn end_look(&self, seen: Seen) {
        // SeqCst: pairs with the counts in `make`, and with the load in `were_met`.
        if seen.1 || self.begun.load(Ordering::SeqCst) != seen.0 {
            self.met.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// In a forked child, which has none of the parent's other threads.
    pub(crate) fn reset_after_fork(&self) {
        // SeqCst: pairs with `begin_look` in later threads.
        self.makers.iter().for_each(|place| place.store(0, Ordering::SeqCst));
        self.others.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_meets_calls_that_are_under_way_and_such_that_begin() {
        let guards = Guards::default();
        let met = |call: &dyn Fn()| {
            let seen = guards.begin_look();
            call();
            let before = guards.met.load(Ordering::Relaxed);
            guards.end_look(seen);
            guards.met.load(Ordering::Relaxed) != before
        };
        assert!(!met(&|| {}));
        let ((), made) = guards.make(5, || assert!(met(&|| {})));
        assert!(guards.were_met(made) && !met(&|| {}));
        assert!(met(&|| _ = guards.make(5, || {})));
    }

    #[test]
    fn a_call_that_was_left_is_met_until_that_is_known() {
        let guards = Guards::default();
        let busy = || guards.begin_look().1;
        guards.makers[3].store(7, Ordering::Relaxed);
        guards.forget(6);
        assert!(busy());
        guards.forget(7);
        assert!(!busy());
        guards.makers.iter().for_each(|place| place.store(7, Ordering::Relaxed));
        guards.make(8, || {
            assert_eq!(guards.others.load(Ordering::Relaxed), 1);
            guards.reset_after_fork();
            assert!(!busy());
        });
        assert!(!busy());
    }
}
