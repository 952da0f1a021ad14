//! Frees. Whoever frees many pages, one after another, does so by a [`Freer`]: where their slots are in a row, as those of
//! pages that left together are, each cluster is locked once, and each area looked up once.
//!
//! A page is gone, its object let go of, and both counted, as soon as it was named. Only its slot may wait for the others of
//! its row: nobody is given it meanwhile.

use core::sync::atomic::Ordering;

use super::table_word::Word;
use super::{Entry, Store};
use crate::slot::{AreaRef, Row, SwapCache};

/// Frees entries, for whoever has made it: their slots are free when it is dropped. Not to be kept for long, nor by a thread
/// that waits for others: swapoff waits for who uses an area. Each call may take, and gives back, locks of clusters and of the
/// pool.
#[derive(Debug)]
pub struct Freer<'a> {
    store: &'a Store,
    /// Slots that wait for their row to end, and their area.
    row: Option<Row<AreaRef<'a>>>,
}

impl<'a> Freer<'a> {
    /// Drops one reference to an entry. Freeing an entry that is not in use is counted and has no other effect.
    pub fn free(&mut self, e: Entry) {
        if self.take(e).is_none() {
            self.store.counters.bad_frees.add(1);
        }
    }

    /// The clean copy that [`Store::keep_cached`] kept is not wanted any more. No effect if it was taken back before.
    pub fn drop_cached(&mut self, e: Entry) {
        let cache = self.store.word_cache();
        if let Some(row) = self.row_of(e.area())
            && cache.give_up(row.area(), e.offset())
        {
            row.push(e.offset());
        }
    }

    fn take(&mut self, e: Entry) -> Option<()> {
        let store = self.store;
        let row = self.row_of(e.area())?;
        let place = row.area().word(e.offset())?;
        let mut raw = place.load(Ordering::Acquire);
        loop {
            let freed = match Word::decode(raw) {
                Word::Claimed(_) => Word::Dropped,
                word if word.is_page() => Word::Empty,
                _ => return None,
            };
            match place.compare_exchange_weak(raw, freed.encode(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => raw = now,
            }
        }
        let word = Word::decode(raw);
        match word.object() {
            Some(object) => store.let_go(object),
            None => row.area().io.pages.sub(1),
        }
        store.counters.stored_now.sub(1);
        if !matches!(word, Word::Claimed(_)) {
            row.push(e.offset());
        }
        Some(())
    }

    /// Where slots of an area wait; those of another do so no more.
    fn row_of(&mut self, area: u8) -> Option<&mut Row<AreaRef<'a>>> {
        if self.row.as_ref().is_none_or(|row| row.area().id() != area) {
            self.row = self.store.areas.get(area).map(Row::new);
        }
        self.row.as_mut()
    }
}

impl Store {
    /// Frees entries one after another; see [`Freer`].
    pub fn freer(&self) -> Freer<'_> {
        Freer { store: self, row: None }
    }

    /// Drops one reference to an entry. Freeing an entry that is not in use is counted and has no other effect.
    pub fn free(&self, e: Entry) {
        self.freer().free(e);
    }

    /// As [`Store::free`], of each entry.
    pub fn free_all(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut freer = self.freer();
        entries.into_iter().for_each(|e| freer.free(e));
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
#[path = "free_tests.rs"]
mod tests;
