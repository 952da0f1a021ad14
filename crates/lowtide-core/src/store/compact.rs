//! Compaction of the pool, as far as it is the store's part: table words follow the objects that move.

use core::sync::atomic::Ordering;

use super::word::Word;
use super::{Entry, Store};
use crate::pool::{Handle, Owner};

/// Bits of an owner for the slot's offset; those above are for the area.
const OFFSET_BITS: u32 = Owner::BITS - 8;

/// The entry as the owner of an object. Objects of slots that an owner can't name (of areas of more than 16 TiB) have none, and stay
/// where they are.
pub(super) fn owner(entry: Entry) -> Option<Owner> {
    if entry.offset() >> OFFSET_BITS != 0 {
        return None;
    }
    Owner::new(u64::from(entry.area()) << OFFSET_BITS | entry.offset())
}

impl Store {
    /// Whether the pool has so much free room inside its spans that [`Store::compact`] is worth its while.
    pub fn is_sparse(&self) -> bool {
        self.pool.is_sparse()
    }

    /// Compacts the pool: moves the objects of its emptiest spans together until about `pages` of them were moved or nothing is
    /// gained any more, and returns how many were. Entries, and loads and frees in progress, are not disturbed.
    pub fn compact(&self, pages: usize) -> usize {
        self.pool.compact(pages, &mut |owner, old, new| self.follow(owner, old, new))
    }

    /// The entry becomes the owner of the object, so that the object can be moved.
    pub(super) fn own(&self, entry: Entry, handle: Handle) {
        if let Some(owner) = owner(entry) {
            let owned = self.pool.set_owner(handle, owner);
            debug_assert!(owned.is_ok(), "an object was freed before it was known");
        }
    }

    /// Makes a table word name the new place of its object, if it still names the old one.
    fn follow(&self, owner: Owner, old: Handle, new: Handle) -> bool {
        let area = (owner.raw() >> OFFSET_BITS) as u8;
        let offset = owner.raw() & ((1 << OFFSET_BITS) - 1);
        let Some(area) = self.areas.get(area) else { return false };
        let Some(word) = area.word(offset) else { return false };
        let (old, new) = (Word::Pool(old).encode(), Word::Pool(new).encode());
        // Release: whoever sees the new handle finds the copy. Acquire on failure is not needed: nothing is concluded from the word
        // but that it is not the old one.
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
