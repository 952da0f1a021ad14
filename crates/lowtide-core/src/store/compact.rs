//! Compaction of the pool, as far as it is the store's part: the table words are looked through for objects that are to move,
//! and follow them.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Store;
use super::table_word::{Object, Word};
use super::walk::Walk;
use crate::pool::Relocated;

/// Words that are looked at for each page that may be moved.
const LOOKS: usize = 64;

/// A pass over the table words.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    /// How far it has come. Who walks alone changes `moved`.
    walk: Walk,
    /// Pages moved in this pass.
    moved: AtomicUsize,
    /// Passes begun.
    passes: AtomicU64,
}

impl Compaction {
    /// How many passes have begun. Read before a table word and after it was read again: if it has not changed, and the word
    /// has not, then the object was not moved between. (An object that moved there and back did so in two passes. The second
    /// one began after the first move; a thread that sees the second move's word also sees that it began.)
    pub(super) fn passes(&self) -> u64 {
        // Acquire: pairs with the Release with which a pass begins.
        self.passes.load(Ordering::Acquire)
    }
}

impl Store {
    /// Whether [`Store::compact`] should be called: the pool has much free room inside its spans, or a pass is under way (until
    /// it is over, the spans that it empties take no objects).
    pub fn wants_compaction(&self) -> bool {
        self.compaction.walk.is_under_way() || self.pool.is_sparse()
    }

    /// Compacts the pool a bit: moves at most `pages` objects, and looks at no more than 64 words for each. Loads and frees in
    /// progress are not disturbed. Returns whether there is more to do now: `false` when nothing is gained any more, or another
    /// thread is at it.
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
            // `NoRoom`: what has not moved so far stays.
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

    /// Moves the object that a table word names, if its span is isolated.
    fn compact_page(&self, word: &AtomicU64) -> Relocated {
        let raw = word.load(Ordering::Acquire);
        let Word::Pool(old) = Word::decode(raw) else { return Relocated::No };
        if !self.pool.is_isolated(old.handle) {
            return Relocated::No;
        }
        // Release: whoever sees the new handle finds the copy.
        let moved = |handle| Word::Pool(Object { handle, ..old }).encode();
        let swap = |new| word.compare_exchange(raw, moved(new), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.pool.relocate(old.handle, &mut { swap })
    }
}
