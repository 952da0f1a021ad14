//! The turn of one visit (`visits.rs`). Numbers keep a thread that takes an abandoned turn from
//! taking a later one of the same thread.
//!
//! No locks, no waiting, no allocation.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::visits::{Visit, WHO_BITS};

const LOW: u64 = (1 << WHO_BITS) - 1;

/// A turn's number, and the thread's id in the lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Had(u64);

impl Had {
    /// The thread.
    pub fn who(self) -> u32 {
        (self.0 & LOW) as u32
    }

    /// Its unique number.
    pub fn number(self) -> u64 {
        self.0 >> WHO_BITS
    }
}

/// The turn.
#[derive(Debug)]
pub struct Turn {
    /// 0: free.
    had: AtomicU64,
    /// The visit's place, and the lowest bits of the turn's number.
    at: AtomicU64,
    count: AtomicU64,
}

impl Turn {
    /// Free.
    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    pub const fn new() -> Turn {
        Turn { had: AtomicU64::new(0), at: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    /// Free.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub fn new() -> Turn {
        Turn { had: AtomicU64::new(0), at: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    /// The current turn.
    pub fn now(&self) -> Option<Had> {
        // SeqCst: pairs with the exchanges in `take` and `end`.
        let had = self.had.load(Ordering::SeqCst);
        (had != 0).then_some(Had(had))
    }

    /// The visit of a turn; its place is unknown at first and after the turn.
    pub fn visit(&self, had: Had) -> Visit {
        // Acquire: pairs with the Release in `take`: the mark is there.
        let at = self.at.load(Ordering::Acquire);
        let is_its = at & LOW == had.number() & LOW;
        Visit::of_word(if is_its { at & !LOW } else { 0 } | had.0 & LOW).expect("a thread has an id")
    }

    /// Takes the free or abandoned turn `from` for a thread (no stranger). None: another thread was
    /// first.
    pub fn take(&self, from: Option<Had>, visit: Visit) -> Option<Had> {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let had = number << WHO_BITS | u64::from(visit.who());
        // SeqCst: pairs with the exchange in `end`; the last turn's effects precede this one.
        self.had.compare_exchange(from.map_or(0, |from| from.0), had, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        // Release: pairs with the Acquire in `visit`.
        self.at.store(visit.word() & !LOW | number & LOW, Ordering::Release);
        Some(Had(had))
    }

    /// Ends a turn. False: it was taken away.
    pub fn end(&self, had: Had) -> bool {
        // SeqCst: pairs with the exchange in `take`, and with a later check of the caller's.
        self.had.compare_exchange(had.0, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// In a forked child: frees the turn.
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
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
