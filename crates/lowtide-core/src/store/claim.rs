//! Claims let background workers (`shrink.rs`, `recompress.rs`) work on a page in the pool while
//! others load and free it.
//!
//! A compare-and-swap changes `Pool(object)` to `Claimed(object)`: then compaction leaves the
//! object in place, no other worker takes the page, and the slot is the worker's. Loads read the
//! object as before. A free makes the word `Dropped` and removes the object, but leaves the slot to
//! the worker, so that no other page gets it meanwhile.
//!
//! Once the bytes are in their new place, a compare-and-swap changes `Claimed` to its word, and
//! only then the worker removes the object: a concurrent load sees the change, and reads again. If
//! the swap fails, the page was freed, and the worker gives the new place up. If the work failed,
//! the word becomes `Pool` again.
//!
//! The swap cannot meet another object, because only this worker can make the word `Claimed` again.
//! (Garbage read from a freed object gets a place that no word ever names.) Claims end with their
//! call, so no fork copies one.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use super::table_word::{Object, Word};
use crate::slot::{Area, Row};

pub(super) fn take(area: &Area, slot: u64, wanted: impl Fn(Object) -> bool) -> Option<Object> {
    let place = area.word(slot)?;
    loop {
        let raw = place.load(Ordering::Acquire);
        let Word::Pool(object) = Word::decode(raw) else { return None };
        if !wanted(object) {
            return None;
        }
        // Fails after a free, another claim, or a move of the object.
        let claimed = Word::Claimed(object).encode();
        if place.compare_exchange(raw, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Some(object);
        }
    }
}

/// Ends a claim with `word`. False: the page was freed; its slot goes to `row`, of the same area.
pub(super) fn finish(row: &mut Row<impl Deref<Target = Area>>, slot: u64, claimed: Object, word: Word) -> bool {
    let Some(place) = row.area().word(slot) else { return false };
    let claimed = Word::Claimed(claimed).encode();
    // Release: a thread that sees the word finds the bytes.
    if place.compare_exchange(claimed, word.encode(), Ordering::AcqRel, Ordering::Acquire).is_ok() {
        return true;
    }
    debug_assert_eq!(Word::decode(place.load(Ordering::Relaxed)), Word::Dropped);
    place.store(Word::Empty.encode(), Ordering::Release);
    row.push(slot);
    false
}
