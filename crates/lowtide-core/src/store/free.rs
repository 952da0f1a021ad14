//! Frees. A [`Freer`] locks each cluster of consecutive slots once, and looks each area up once.
//!
//! A page and its object are freed and counted at once. Only its slot may wait for the end of its
//! row.

use core::sync::atomic::Ordering;

use super::table_word::Word;
use super::{Entry, Store};
use crate::slot::{AreaRef, Row, SwapCache};

/// Frees entries, and their slots when dropped. Keep it briefly and wait for no thread meanwhile:
/// swapoff waits for users of an area. Each call may take and release locks of clusters and of the
/// pool.
#[derive(Debug)]
pub struct Freer<'a> {
    store: &'a Store,
    /// Slots that wait for their row to end.
    row: Option<Row<AreaRef<'a>>>,
}

impl<'a> Freer<'a> {
    /// Drops one reference to an entry. Freeing an unused entry is only counted.
    pub fn free(&mut self, e: Entry) {
        if self.take(e).is_none() {
            self.store.counters.bad_frees.add(1);
        }
    }

    /// Drops a clean copy, unless it was taken back.
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

    /// Ends the row of another area.
    fn row_of(&mut self, area: u8) -> Option<&mut Row<AreaRef<'a>>> {
        if self.row.as_ref().is_none_or(|row| row.area().id() != area) {
            self.row = self.store.areas.get(area).map(Row::new);
        }
        self.row.as_mut()
    }
}

impl Store {
    /// A [`Freer`] for many entries.
    pub fn freer(&self) -> Freer<'_> {
        Freer { store: self, row: None }
    }

    /// Drops one reference to an entry. Freeing an unused entry is only counted.
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
