//! Whose turn it is, of those inside (`visits.rs`). Who proves that it was left behind takes that turn, and no later one of the
//! same thread: each has a number of its own.
//!
//! No locks, no waiting, no allocation, as there.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::visits::{Visit, WHO_BITS};

const LOW: u64 = (1 << WHO_BITS) - 1;

/// A turn that somebody has had: its number, and the thread's id in the lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Had(u64);

impl Had {
    /// The thread.
    pub fn who(self) -> u32 {
        (self.0 & LOW) as u32
    }

    /// No other turn has it.
    pub fn number(self) -> u64 {
        self.0 >> WHO_BITS
    }
}

/// See above.
#[derive(Debug)]
pub struct Turn {
    /// 0: nobody has it.
    had: AtomicU64,
    /// The place of that visit, with the lowest bits of the turn's number.
    at: AtomicU64,
    count: AtomicU64,
}

impl Turn {
    /// Nobody's.
    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    pub const fn new() -> Turn {
        Turn { had: AtomicU64::new(0), at: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    /// Nobody's.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub fn new() -> Turn {
        Turn { had: AtomicU64::new(0), at: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    /// The turn that somebody has now.
    pub fn now(&self) -> Option<Had> {
        // SeqCst: pairs with the exchanges in `take` and `end`.
        let had = self.had.load(Ordering::SeqCst);
        (had != 0).then_some(Had(had))
    }

    /// The visit of a turn. Where it is not known if the thread has not said so yet, or the turn is over.
    pub fn visit(&self, had: Had) -> Visit {
        // Acquire: pairs with the Release in `take`. The mark that is looked for there was made before.
        let at = self.at.load(Ordering::Acquire);
        let is_its = at & LOW == had.number() & LOW;
        Visit::of_word(if is_its { at & !LOW } else { 0 } | had.0 & LOW).expect("a thread has an id")
    }

    /// A thread (no stranger) takes the turn, which is nobody's or was left behind. None: it is another one by now.
    pub fn take(&self, from: Option<Had>, visit: Visit) -> Option<Had> {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let had = number << WHO_BITS | u64::from(visit.who());
        // SeqCst: pairs with the exchange in `end`. What was done in the turn before comes before this one.
        self.had.compare_exchange(from.map_or(0, |from| from.0), had, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        // Release: pairs with the Acquire in `visit`.
        self.at.store(visit.word() & !LOW | number & LOW, Ordering::Release);
        Some(Had(had))
    }

    /// It ends. False: it was taken away.
    pub fn end(&self, had: Had) -> bool {
        // SeqCst: pairs with the exchange in `take`, and with a look of the caller's that follows.
        self.had.compare_exchange(had.0, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// In a forked child: nobody's.
    pub fn reset_after_fork(&self) {
        self.had.store(0, Ordering::SeqCst);
    }
}

impl Default for Turn {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_taken_once() {
        let turn = Turn::new();
        let visits = [Visit::new(5, 4096), Visit::new(6, 8192)];
        let first = turn.take(None, visits[0]).unwrap();
        assert_eq!((turn.now(), turn.visit(first), turn.take(None, visits[1])), (Some(first), visits[0], None));
        let second = turn.take(Some(first), visits[1]).unwrap();
        assert!(!turn.end(first) && turn.now() == Some(second));
        assert_eq!((turn.visit(first), turn.visit(second)), (Visit::new(5, 0), visits[1]));
        assert!(turn.end(second) && turn.now().is_none());
    }
}

#[cfg(all(test, feature = "loom"))]
mod models {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    /// A thread comes in again at the same place, while another finds that it has left the turn before.
    #[test]
    fn who_takes_a_turn_that_was_left_takes_no_later_one() {
        loom::model(|| {
            let turn = Arc::new(Turn::new());
            let visit = Visit::new(1, 64);
            let first = turn.take(None, visit).unwrap();
            let other = turn.clone();
            let owner = thread::spawn(move || {
                other.end(first);
                if let Some(second) = other.take(None, visit) {
                    assert_eq!(other.now(), Some(second));
                    assert!(other.end(second));
                }
            });
            turn.take(Some(first), Visit::new(2, 64));
            owner.join().unwrap();
        });
    }

    /// Where a turn was left is looked for at no other thread's place.
    #[test]
    fn places_are_those_of_the_thread() {
        loom::model(|| {
            let turn = Arc::new(Turn::new());
            let threads = [1, 2].map(|who| {
                let turn = turn.clone();
                thread::spawn(move || {
                    if let Some(had) = turn.take(None, Visit::new(who, who as usize * 64)) {
                        turn.end(had);
                    }
                })
            });
            if let Some(had) = turn.now() {
                let visit = turn.visit(had);
                assert!(visit.at().is_none_or(|at| at == had.who() as usize * 64), "{visit:?}");
            }
            threads.map(|thread| thread.join().unwrap());
        });
    }
}
