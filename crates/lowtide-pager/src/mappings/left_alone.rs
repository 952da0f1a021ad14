//! Memory that is never registered, because the program has asked the kernel for what lowtide would
//! break: wiping in forked children (MADV_WIPEONFORK, MAP_DROPPABLE), or moves by a userfaultfd of
//! its own.
//!
//! Threads of the program write the table, without a lock, also in signal handlers; the reclaimer
//! reads it. Each entry is one word, and what stays left alone is never out of the table while an
//! entry is cut. Too much in it leaves memory unlimited, and a mapping of which only a part is left
//! alone can't be moved as one.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;

const MOST: usize = 64;
/// Of an entry's word, the bits for the number of pages; those above are the first page.
const LEN_BITS: u32 = 28;
/// Pages of an entry.
const LONGEST: usize = (1 << LEN_BITS) - 1;
/// End of the addresses that memory may be registered at.
const TOP: usize = 1 << 47;

/// The ranges that are never registered.
#[derive(Debug)]
pub struct LeftAlone {
    /// 0: empty.
    entries: [AtomicU64; MOST],
    /// Entries that were ever used.
    used: AtomicUsize,
    /// How often what was in one entry has gone into two.
    cuts: AtomicUsize,
    /// Nothing is registered any more: no entry was empty, and none near enough to grow.
    everything: AtomicBool,
}

/// Parts of a range, in no order; of too many, the smallest range with all.
pub type Removed = ArrayVec<Range, 4>;

/// None: too long.
fn packed(range: Range) -> Option<u64> {
    let pages = range.end.saturating_sub(range.start) / PAGE_SIZE;
    (pages <= LONGEST).then_some(((range.start / PAGE_SIZE) as u64) << LEN_BITS | pages as u64)
}

/// Whole pages of what a program can have.
fn whole(range: Range) -> Range {
    let start = range.start.min(TOP) & !(PAGE_SIZE - 1);
    Range { start, end: range.end.min(TOP).next_multiple_of(PAGE_SIZE) }
}

fn unpacked(word: u64) -> Range {
    let start = (word >> LEN_BITS) as usize * PAGE_SIZE;
    Range { start, end: start + (word as usize & LONGEST) * PAGE_SIZE }
}

impl LeftAlone {
    /// An empty table.
    pub const fn new() -> LeftAlone {
        LeftAlone {
            entries: [const { AtomicU64::new(0) }; MOST],
            used: AtomicUsize::new(0),
            cuts: AtomicUsize::new(0),
            everything: AtomicBool::new(false),
        }
    }

    fn used(&self) -> &[AtomicU64] {
        // Acquire: pairs with the AcqRel in `put`.
        &self.entries[..self.used.load(Ordering::Acquire).min(MOST)]
    }

    fn all(&self) -> impl Iterator<Item = Range> {
        Self::ranges(self.used())
    }

    fn ranges(entries: &[AtomicU64]) -> impl Iterator<Item = Range> {
        entries.iter().map(|entry| unpacked(entry.load(Ordering::Acquire))).filter(|range| range.start < range.end)
    }

    /// Puts a range into an empty entry. False: there is none.
    fn put(&self, word: u64) -> bool {
        let takes = |entry: &AtomicU64| entry.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let Some(at) = self.entries.iter().position(takes) else { return false };
        self.used.fetch_max(at + 1, Ordering::AcqRel);
        true
    }

    /// The caller then releases what is registered of it.
    pub fn add(&self, range: Range) {
        let range = whole(range);
        let mut start = range.start;
        while start < range.end && !self.everything.load(Ordering::Relaxed) {
            let part = Range { start, end: range.end.min(start + LONGEST * PAGE_SIZE) };
            self.add_part(part);
            start = part.end;
        }
    }

    /// Puts back what was [removed](LeftAlone::remove).
    pub fn add_all(&self, removed: &Removed) {
        removed.iter().for_each(|part| self.add(*part));
    }

    fn add_part(&self, part: Range) {
        let Some(word) = packed(part) else { return };
        // Without an empty entry the nearest grows; it may change meanwhile. (All entries: a signal
        // handler may have interrupted `put` before it counted one.)
        while !Self::ranges(&self.entries).any(|known| known.covers(part)) && !self.put(word) {
            let nearest = self.entries.iter().filter_map(|entry| {
                let word = Some(entry.load(Ordering::Acquire)).filter(|word| *word != 0)?;
                Some((entry, word, packed(unpacked(word).hull(part))?))
            });
            let Some((entry, word, grown)) = nearest.min_by_key(|(.., grown)| grown & LONGEST as u64) else {
                if self.entries.iter().any(|entry| entry.load(Ordering::Relaxed) == 0) {
                    continue;
                }
                // Release: pairs with the Acquire in `first_in`.
                return self.everything.store(true, Ordering::Release);
            };
            let _ = entry.compare_exchange(word, grown, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The program is about to give this range other memory, or none. Before the call that does:
    /// afterwards it may be another thread's. Returns what of it was left alone.
    pub fn remove(&self, range: Range) -> Removed {
        let (range, mut removed) = (whole(range), Removed::new());
        // What others cut meanwhile may have gone into an entry that was looked at before.
        let mut cuts = None;
        while range.start < range.end && cuts != Some(self.cuts.load(Ordering::Acquire)) {
            cuts = Some(self.cuts.load(Ordering::Acquire));
            self.remove_once(range, |part| {
                if removed.contains(&part) {
                } else if removed.try_push(part).is_err() {
                    let all = removed.drain(..).chain([part]).reduce(|one, other| one.hull(other));
                    removed.extend(all);
                }
            });
        }
        removed
    }

    fn remove_once(&self, range: Range, mut was_left_alone: impl FnMut(Range)) {
        for entry in self.used() {
            loop {
                let word = entry.load(Ordering::Acquire);
                let known = unpacked(word);
                if !known.meets(range) {
                    break;
                }
                let mut rest = known.without(range).filter_map(packed);
                let left = rest.next().unwrap_or(0);
                if let Some(behind) = rest.next() {
                    // Too much stays where there is no entry for what is behind.
                    if !self.put(behind) {
                        was_left_alone(known.within(range));
                        break;
                    }
                    // Release: whoever finds the entry cut knows of this.
                    self.cuts.fetch_add(1, Ordering::AcqRel);
                }
                if entry.compare_exchange(word, left, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    was_left_alone(known.within(range));
                    break;
                }
            }
        }
    }

    fn first_in(&self, range: Range) -> Option<Range> {
        if self.everything.load(Ordering::Acquire) {
            return Some(range);
        }
        loop {
            // Acquire: pairs with the AcqRel in `remove`, after the new entry.
            let cuts = self.cuts.load(Ordering::Acquire);
            let first = self.all().filter(|known| known.meets(range)).min_by_key(|known| known.start);
            // Else an entry may have been read after its cut, and the new one before it was there.
            if self.cuts.load(Ordering::Acquire) == cuts {
                return first;
            }
        }
    }

    /// Calls `f` with the parts of a range that may be registered.
    pub fn each_other(&self, range: Range, mut f: impl FnMut(Range)) {
        let mut at = range.start;
        while at < range.end {
            let rest = Range { start: at, end: range.end };
            let next = self.first_in(rest);
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
    use lowtide_core::vm::PAGE_SIZE;
    use std::vec::Vec;

    fn pages(first: usize, len: usize) -> Range {
        Range { start: first * PAGE_SIZE, end: (first + len) * PAGE_SIZE }
    }

    /// By pages, as all that follows.
    fn others(table: &LeftAlone, start: usize, end: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        table.each_other(pages(start, end - start), |part| found.push((part.start / PAGE_SIZE, part.end / PAGE_SIZE)));
        found
    }

    #[test]
    fn what_is_not_in_the_table_may_be_registered() {
        let table = LeftAlone::new();
        assert_eq!(others(&table, 10, 90), [(10, 90)]);
        for (start, end) in [(40, 50), (20, 30), (45, 60), (41, 44)] {
            table.add(pages(start, end - start));
        }
        assert_eq!(others(&table, 10, 90), [(10, 20), (30, 40), (60, 90)]);
        assert_eq!(others(&table, 42, 48), []);
        assert!(!table.remove(pages(15, 20)).is_empty());
        assert!(!table.remove(pages(46, 1)).is_empty());
        assert!(!table.remove(pages(55, 15)).is_empty());
        assert_eq!(others(&table, 10, 90), [(10, 40), (46, 47), (55, 90)]);
        assert!(!table.remove(pages(0, 48)).is_empty());
        assert_eq!(others(&table, 10, 90), [(10, 48), (55, 90)]);
    }

    #[test]
    fn a_cut_without_an_entry_says_what_was_left_alone() {
        let table = LeftAlone::new();
        (0..MOST).for_each(|i| table.add(pages(100 * i, 10)));
        assert_eq!(table.remove(pages(104, 2)).as_slice(), [pages(104, 2)]);
        assert_eq!(others(&table, 100, 110), []);
        // Far from all others.
        table.add(pages(4 * LONGEST, 1));
        assert_eq!(others(&table, 4 * LONGEST, 4 * LONGEST + 1), []);
        assert_eq!(others(&table, 50, 60), []);
    }

    #[test]
    fn odd_ranges_are_taken_whole_and_within_what_a_program_has() {
        let table = LeftAlone::new();
        (0..MOST).for_each(|i| table.add(pages(100 * i, 10)));
        assert!(table.remove(Range { start: 4096 * 103, end: 4096 * 103 }).is_empty());
        table.add(Range { start: 4096 * 20 + 1, end: 4096 * 21 + 1 });
        assert_eq!(others(&table, 20, 22), []);
        LeftAlone::new().add(Range { start: 4096, end: usize::MAX });
    }

    #[test]
    fn long_ranges_have_several_entries() {
        let table = LeftAlone::new();
        table.add(pages(7, 2 * LONGEST + 5));
        assert_eq!(others(&table, 0, 4 * LONGEST), [(0, 7), (2 * LONGEST + 12, 4 * LONGEST)]);
        assert_eq!(table.remove(pages(LONGEST - 5, 25)).len(), 2);
        assert_eq!(table.remove(pages(LONGEST - 5, 25)).len(), 0);
        assert_eq!(others(&table, 7, 2 * LONGEST), [(LONGEST - 5, LONGEST + 20)]);
    }

    /// Two threads add and remove ranges around one that stays, in a table that is full at times.
    #[test]
    fn what_is_left_alone_stays_so_whatever_others_add_and_remove() {
        let table = LeftAlone::new();
        (0..MOST - 4).for_each(|i| table.add(pages(10_000 * (i + 1), 1)));
        let kept = pages(500, 4);
        table.add(kept);
        let done = AtomicUsize::new(0);
        let changes = |seed: u64, low: usize| {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..200_000 {
                let side = if random.bool() { low } else { low + 600 };
                let range = pages(side + random.usize(..80), 1 + random.usize(..20));
                if random.bool() {
                    table.add(range);
                } else {
                    table.remove(range);
                }
            }
            done.fetch_add(1, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| changes(1, 100));
            scope.spawn(|| changes(2, 300));
            while done.load(Ordering::Relaxed) < 2 {
                assert_eq!(others(&table, 500, 504), []);
            }
        });
    }

    #[test]
    fn a_full_table_says_too_much_and_never_too_little() {
        let table = LeftAlone::new();
        (0..MOST + 20).for_each(|i| table.add(pages(100 * i, 10)));
        for i in 0..MOST + 20 {
            assert_eq!(others(&table, 100 * i, 100 * i + 10), [], "{i}");
        }
        assert!(!others(&table, 0, 1000).is_empty());
    }
}
