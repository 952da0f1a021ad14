//! Compaction of the pool, as far as it is the store's part: the table words are looked through for objects that are to move,
//! and follow them.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::Store;
use super::table_word::{Object, Word};
use crate::pool::Moved;

/// Words that are looked at for each page that may be moved.
const LOOKS: usize = 64;

/// How far a pass over the table words has come. Kept between calls, so that each is short.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    /// A thread is at work.
    busy: AtomicBool,
    /// The area to go on with, plus one; 0: no pass is under way.
    area: AtomicUsize,
    /// The slot of it to go on with.
    slot: AtomicU64,
    /// Pages moved in this pass.
    moved: AtomicUsize,
    /// Passes begun.
    passes: AtomicU64,
}

impl Compaction {
    /// How many passes have begun. Read before a table word and after it was read again: if it has not changed, and the word
    /// has not, then the object was not moved between. (An object that moved there and back did so in two passes. The second
    /// one began after the first move; who sees the second move's word also sees that it began.)
    pub(super) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Acquire)
    }
}

/// Areas have numbers of 8 bits.
const AREAS: usize = 1 << u8::BITS;

impl Store {
    /// Whether [`Store::compact`] should be called: the pool has much free room inside its spans, or a pass is under way (until
    /// it is over, the spans that it empties take no objects).
    pub fn wants_compaction(&self) -> bool {
        self.compaction.area.load(Ordering::Relaxed) != 0 || self.pool.is_sparse()
    }

    /// Compacts the pool a bit: moves at most `pages` objects, and looks at no more than 64 words for each. Loads and frees in
    /// progress are not disturbed. Returns whether there is more to do now: `false` when nothing is gained any more, or another
    /// thread is at it.
    pub fn compact(&self, pages: usize) -> bool {
        self.compact_in_steps(pages, &mut || ())
    }

    /// As [`Store::compact`], and calls `step` whenever memory has gone back: for who counts it ([`Store::held_bytes`]).
    pub fn compact_in_steps(&self, pages: usize, step: &mut dyn FnMut()) -> bool {
        if self.compaction.busy.swap(true, Ordering::Acquire) {
            return false;
        }
        let more = self.compact_some(pages, step);
        self.compaction.busy.store(false, Ordering::Release);
        more
    }

    fn compact_some(&self, pages: usize, step: &mut dyn FnMut()) -> bool {
        let state = &self.compaction;
        if state.area.load(Ordering::Relaxed) == 0 {
            if self.pool.isolate() == 0 {
                return false;
            }
            state.passes.fetch_add(1, Ordering::Release);
            state.area.store(1, Ordering::Relaxed);
            state.slot.store(0, Ordering::Relaxed);
            state.moved.store(0, Ordering::Relaxed);
        }
        let mut moves = pages.max(1);
        let mut looks = moves.saturating_mul(LOOKS);
        loop {
            let area = state.area.load(Ordering::Relaxed) - 1;
            if area == AREAS || !self.compact_area(area as u8, &mut looks, &mut moves) {
                // All have been looked at, or there is no more room.
                self.pool.let_go(step);
                state.area.store(0, Ordering::Relaxed);
                return state.moved.load(Ordering::Relaxed) > 0;
            }
            if looks == 0 || moves == 0 {
                return true;
            }
            state.area.store(area + 2, Ordering::Relaxed);
            state.slot.store(0, Ordering::Relaxed);
        }
    }

    /// Goes on with an area until its end, or until `looks` or `moves` is used up. `false` when the pool has no more room.
    fn compact_area(&self, id: u8, looks: &mut usize, moves: &mut usize) -> bool {
        let Some(area) = self.areas.get(id) else { return true };
        let state = &self.compaction;
        let mut slot = state.slot.load(Ordering::Relaxed);
        let mut room = true;
        while let Some(word) = area.word(slot)
            && *looks > 0
            && *moves > 0
            && room
        {
            *looks -= 1;
            slot += 1;
            let raw = word.load(Ordering::Acquire);
            let Word::Pool(old) = Word::decode(raw) else { continue };
            if !self.pool.is_isolated(old.handle) {
                continue;
            }
            // Release: whoever sees the new handle finds the copy.
            let moved = |handle| Word::Pool(Object { handle, ..old }).encode();
            let swap = |new| word.compare_exchange(raw, moved(new), Ordering::AcqRel, Ordering::Relaxed).is_ok();
            match self.pool.relocate(old.handle, &mut { swap }) {
                Moved::Yes => {
                    *moves -= 1;
                    state.moved.fetch_add(1, Ordering::Relaxed);
                }
                Moved::No => {}
                Moved::NoRoom => room = false,
            }
        }
        state.slot.store(slot, Ordering::Relaxed);
        room
    }
}
