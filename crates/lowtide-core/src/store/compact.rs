//! The store's part of compaction: updates table words.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Store;
use super::table_word::{Object, Word};
use super::walk::Walk;
use crate::pool::Relocated;

/// Words read for each page.
const LOOKS: usize = 64;

/// A pass over the table words.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    /// Its walker alone changes `moved`.
    walk: Walk,
    moved: AtomicUsize,
    passes: AtomicU64,
}

impl Compaction {
    /// Passes begun. Read before a table word, and again after the word's second read: if neither
    /// has changed, the object did not move. (A move there and back takes two passes; a thread that
    /// sees the second move's word also sees its pass.)
    pub(super) fn passes(&self) -> u64 {
        // Acquire: pairs with the Release in `compact`.
        self.passes.load(Ordering::Acquire)
    }
}

impl Store {
    /// Whether to call [`Store::compact`]: the pool is sparse, or a pass keeps spans from taking
    /// objects.
    pub fn wants_compaction(&self) -> bool {
        self.compaction.walk.is_under_way() || self.pool.is_sparse()
    }

    /// Moves at most `pages` objects, and reads at most 64 words for each. Loads and frees in
    /// progress are not disturbed. False: nothing is gained any more, or another thread compacts.
    pub fn compact(&self, pages: usize) -> bool {
        let state = &self.compaction;
        let Some(mut walker) = state.walk.go_on(&self.areas) else { return false };
        if !state.walk.is_under_way() {
            if self.pool.isolate() == 0 {
                return false;
            }
            // Release: pairs with the Acquire in `passes`.
            state.passes.fetch_add(1, Ordering::Release);
            state.moved.store(0, Ordering::Relaxed);
            walker.begin();
        }
        let mut moves = pages.max(1);
        for _ in 0..moves.saturating_mul(LOOKS) {
            if moves == 0 {
                return true;
            }
            // `NoRoom`: the remaining objects stay.
            let moved = walker.next().map(|(area, slot)| area.word(slot).map_or(Relocated::No, |word| self.compact_page(word)));
            match moved {
                Some(Relocated::Yes) => {
                    moves -= 1;
                    state.moved.fetch_add(1, Ordering::Relaxed);
                }
                Some(Relocated::No) => {}
                Some(Relocated::NoRoom) | None => {
                    self.pool.let_go();
                    walker.end();
                    return state.moved.load(Ordering::Relaxed) > 0;
                }
            }
        }
        true
    }

    fn compact_page(&self, word: &AtomicU64) -> Relocated {
        let raw = word.load(Ordering::Acquire);
        let Word::Pool(old) = Word::decode(raw) else { return Relocated::No };
        if !self.pool.is_isolated(old.handle) {
            return Relocated::No;
        }
        // Release: a thread that sees the new handle finds the copy.
        let moved = |handle| Word::Pool(Object { handle, ..old }).encode();
        let swap = |new| word.compare_exchange(raw, moved(new), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.pool.relocate(old.handle, &mut { swap })
    }
}
