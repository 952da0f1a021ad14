//! Claims: how background workers (`shrink.rs`, `recompress.rs`) work on a page in the pool while others load it and free it.
//!
//! `Pool(object)` becomes `Claimed(object)` by compare-and-swap: from then on compaction leaves the object where it is, no
//! other worker takes the page, and the slot is the worker's until it says otherwise. A load reads the object as before. A free
//! makes the word `Dropped` and removes the object, but not the slot, which could be given to another page while the worker is
//! still at the old one; the worker frees it afterwards.
//!
//! When the worker has the page's bytes in their new place, `Claimed` becomes the word that names it, by compare-and-swap, and
//! only then the worker removes the object: a load that was reading it finds that the word has changed, and reads again. If the
//! swap fails, the page was freed meanwhile, and the new place is the worker's to give up. When nothing came of the work, the
//! word becomes `Pool` again and nothing has happened.
//!
//! The object that `Claimed` names in the swap can't be another one than the one that was claimed, because the word can't come
//! to say `Claimed` again without this worker. (Should the object be freed while it is read, then the worker has garbage, and
//! makes of it a new place that no word ever names.) Claims do not outlive the call that makes them, so no fork copies one.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use super::table_word::{Object, Word};
use crate::slot::{Area, Row};

/// Claims the page of a slot, if it is an object in the pool that is `wanted`.
pub(super) fn take(area: &Area, slot: u64, wanted: impl Fn(Object) -> bool) -> Option<Object> {
    let place = area.word(slot)?;
    loop {
        let raw = place.load(Ordering::Acquire);
        let Word::Pool(object) = Word::decode(raw) else { return None };
        if !wanted(object) {
            return None;
        }
        // Fails when the page is freed, claimed by another worker, or compaction moves its object.
        let claimed = Word::Claimed(object).encode();
        if place.compare_exchange(raw, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Some(object);
        }
    }
}

/// Lets go of a claimed page, whose word is `word` from now on. False: the page was freed meanwhile; its slot is let go of by
/// way of `row`, which is of its area.
pub(super) fn finish(row: &mut Row<impl Deref<Target = Area>>, slot: u64, claimed: Object, word: Word) -> bool {
    let Some(place) = row.area().word(slot) else { return false };
    let claimed = Word::Claimed(claimed).encode();
    // Release: whoever sees the word finds the bytes.
    if place.compare_exchange(claimed, word.encode(), Ordering::AcqRel, Ordering::Acquire).is_ok() {
        return true;
    }
    debug_assert_eq!(Word::decode(place.load(Ordering::Relaxed)), Word::Dropped);
    place.store(Word::Empty.encode(), Ordering::Release);
    row.push(slot);
    false
}
