//! Memory that is never registered, because the program has asked the kernel for what lowtide would
//! break: wiping in forked children (MADV_WIPEONFORK, MAP_DROPPABLE), or moves by a userfaultfd of
//! its own.
//!
//! Threads of the program write the table, without a lock, also in signal handlers; the reclaimer
//! reads it. Too long a list only leaves memory unlimited.

use core::sync::atomic::{AtomicUsize, Ordering};

use lowtide_sys::Range;

const MOST: usize = 64;

#[derive(Debug)]
struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
}

/// The ranges that are never registered.
#[derive(Debug)]
pub struct LeftAlone {
    entries: [Entry; MOST],
    used: AtomicUsize,
}

impl Entry {
    fn get(&self) -> Option<Range> {
        // Acquire: pairs with the Release in `add`, after the start was written.
        let end = self.end.load(Ordering::Acquire);
        let range = Range { start: self.start.load(Ordering::Relaxed), end };
        (range.start < range.end).then_some(range)
    }
}

impl LeftAlone {
    /// An empty table.
    pub const fn new() -> LeftAlone {
        let entries = [const { Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; MOST];
        LeftAlone { entries, used: AtomicUsize::new(0) }
    }

    fn all(&self) -> impl Iterator<Item = &Entry> {
        self.entries[..self.used.load(Ordering::Acquire).min(MOST)].iter()
    }

    /// The caller then releases what is registered of it.
    pub fn add(&self, range: Range) {
        if self.all().filter_map(Entry::get).any(|known| known.covers(range)) {
            return;
        }
        let at = self.used.fetch_add(1, Ordering::AcqRel);
        if let Some(entry) = self.entries.get(at) {
            entry.start.store(range.start, Ordering::Relaxed);
            // Release: pairs with the Acquire in `get`.
            entry.end.store(range.end, Ordering::Release);
            return;
        }
        self.used.store(MOST, Ordering::Release);
        // Reuses an empty entry; else the nearest grows.
        let is_taken = |entry: &&Entry| entry.end.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if let Some(entry) = self.entries.iter().find(is_taken) {
            entry.start.store(range.start, Ordering::Relaxed);
            // Release: as above.
            entry.end.store(range.end, Ordering::Release);
            return;
        }
        let distance = |entry: &Entry| {
            let known = entry.get().unwrap_or(range);
            range.start.saturating_sub(known.end).max(known.start.saturating_sub(range.end))
        };
        if let Some(entry) = self.entries.iter().min_by_key(|entry| distance(entry)) {
            entry.start.fetch_min(range.start, Ordering::Relaxed);
            // Release: as above.
            entry.end.fetch_max(range.end, Ordering::Release);
        }
    }

    /// A range has other memory, or none. (Left in the table, it would split new mappings, which
    /// then can't move as one.)
    pub fn remove(&self, range: Range) {
        for entry in self.all() {
            let Some(known) = entry.get().filter(|known| known.meets(range)) else { continue };
            if known.start >= range.start && known.end > range.end {
                entry.start.store(range.end, Ordering::Relaxed);
                continue;
            }
            // Release: pairs with the Acquire in `get`.
            entry.end.store(if known.start < range.start { range.start } else { 0 }, Ordering::Release);
            if known.end > range.end {
                self.add(Range { start: range.end, end: known.end });
            }
        }
    }

    /// A range has moved.
    pub fn moved(&self, from: Range, to: Range) {
        if self.meets(from) {
            self.remove(from);
            self.add(to);
        }
    }

    fn meets(&self, range: Range) -> bool {
        self.all().filter_map(Entry::get).any(|known| known.meets(range))
    }

    /// Whether nothing was ever left alone.
    pub fn is_empty(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 0
    }

    /// Calls `f` with the parts of a range that may be registered.
    pub fn each_other(&self, range: Range, mut f: impl FnMut(Range)) {
        let mut at = range.start;
        while at < range.end {
            let rest = Range { start: at, end: range.end };
            let next = self.all().filter_map(Entry::get).filter(|known| known.meets(rest)).min_by_key(|known| known.start);
            let end = next.map_or(range.end, |known| known.start.max(at));
            if at < end {
                f(Range { start: at, end });
            }
            at = next.map_or(range.end, |known| known.end);
        }
    }
}

impl Default for LeftAlone {
    fn default() -> LeftAlone {
        LeftAlone::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn others(table: &LeftAlone, start: usize, end: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        table.each_other(Range { start, end }, |part| found.push((part.start, part.end)));
        found
    }

    #[test]
    fn what_is_not_in_the_table_may_be_registered() {
        let table = LeftAlone::new();
        assert_eq!(others(&table, 10, 90), [(10, 90)]);
        for (start, end) in [(40, 50), (20, 30), (45, 60), (41, 44)] {
            table.add(Range { start, end });
        }
        assert_eq!(others(&table, 10, 90), [(10, 20), (30, 40), (60, 90)]);
        assert_eq!(others(&table, 42, 48), []);
        table.remove(Range { start: 15, end: 35 });
        table.remove(Range { start: 46, end: 47 });
        table.remove(Range { start: 55, end: 70 });
        assert_eq!(others(&table, 10, 90), [(10, 40), (46, 47), (55, 90)]);
        table.remove(Range { start: 0, end: 48 });
        assert_eq!(others(&table, 10, 90), [(10, 48), (55, 90)]);
    }

    #[test]
    fn a_full_table_says_too_much_and_never_too_little() {
        let table = LeftAlone::new();
        (0..MOST + 20).for_each(|i| table.add(Range { start: 100 * i, end: 100 * i + 10 }));
        for i in 0..MOST + 20 {
            assert_eq!(others(&table, 100 * i, 100 * i + 10), [], "{i}");
        }
        assert!(!others(&table, 0, 1000).is_empty());
    }
}
