//! Guards (MADV_GUARD_INSTALL) that one thread makes while another's fault is served. Zeros are brought in ahead up to the next
//! guard; but a COPY of the kernel (Linux 6.18) puts a page in the place of one that is made between the look and the COPY, and
//! tells nobody.
//!
//! So who makes guards says so before and after ([`Guards::make`]), and who serves a touch finds out that this has happened
//! meanwhile ([`Guards::end_look`]), still holding the space lock. Then a MADV_DONTNEED of the range: its event is read by who
//! has that lock alone, so that all touches have ended that had begun before; and it drops the pages that took the place of
//! guards. If a touch has met the call ([`Guards::were_met`]), it is made again.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Calls at a time of which it is known whose they are.
const MOST: usize = 16;

/// Who makes guards, and counts of calls that do and of touches that met one. Nobody waits for anybody.
#[derive(Debug, Default)]
pub struct Guards {
    /// Ids of threads; 0: none.
    makers: [AtomicU32; MOST],
    /// For which there was no place.
    others: AtomicUsize,
    begun: AtomicUsize,
    met: AtomicUsize,
}

/// How many touches had met a call before one was made.
#[derive(Debug, Clone, Copy)]
pub struct Made(usize);

/// What was so before a look: how many calls had begun, and whether one was under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen(usize, bool);

impl Guards {
    /// Makes guards by `call`, of thread `who`. By threads of the program.
    pub fn make<T>(&self, who: u32, call: impl FnOnce() -> T) -> (T, Made) {
        // SeqCst, here and below: pairs with those in `begin_look` and `end_look`. A look that began before this call ended
        // sees that it had begun, in the end at the latest; then `were_met` sees that it was met.
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
            // (In a child that was forked meanwhile there are none.)
            None => drop(self.others.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |others| others.checked_sub(1))),
        }
        (result, before)
    }

    fn free(&self, place: &AtomicU32, who: u32) {
        let _ = place.compare_exchange(who, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// A thread is in no call of its any more: a signal handler has left it by longjmp.
    pub fn forget(&self, who: u32) {
        self.makers.iter().for_each(|place| self.free(place, who));
    }

    /// Whether a touch has met a call since: after a MADV_DONTNEED of the range that followed it.
    pub fn were_met(&self, since: Made) -> bool {
        // SeqCst: pairs with the count in `end_look`.
        self.met.load(Ordering::SeqCst) != since.0
    }

    /// Whether the program has made any while lowtide was at work.
    pub(crate) fn any(&self) -> bool {
        // SeqCst: pairs with the count in `make`.
        self.begun.load(Ordering::SeqCst) != 0
    }

    /// Before a look where guards are. With the space lock shared, up to [`Guards::end_look`].
    pub(crate) fn begin_look(&self) -> Seen {
        // SeqCst: pairs with those in `make`. What begins from here on counts, and what had begun is under way or has ended.
        let begun = self.begun.load(Ordering::SeqCst);
        let is_made = |place: &AtomicU32| place.load(Ordering::SeqCst) != 0;
        Seen(begun, self.others.load(Ordering::SeqCst) > 0 || self.makers.iter().any(is_made))
    }

    /// Pages have been installed by what was seen then.
    pub(crate) fn end_look(&self, seen: Seen) {
        // SeqCst: pairs with the counts in `make`, and with the look in `were_met`.
        if seen.1 || self.begun.load(Ordering::SeqCst) != seen.0 {
            self.met.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// In a forked child: other threads of the parent are not here, and what they were making is not made.
    pub(crate) fn reset_after_fork(&self) {
        // SeqCst: pairs with `begin_look`, once the child has more threads.
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

    /// Of more calls than there are places, too, and after a fork.
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
