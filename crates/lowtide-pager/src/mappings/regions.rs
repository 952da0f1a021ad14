//! The adopted memory: which address ranges are registered and may be evicted.
//!
//! A sorted array in a mapping of its own, so that applying an event never allocates. Changed under the exclusive space lock,
//! read under the shared one.

use core::cell::UnsafeCell;

use lowtide_core::vm::{self, Mapping, OnFork};
use rustix::io::Errno;

use crate::mappings::space::{Exclusive, Shared};

/// Most ranges that can be adopted: 16 times as many as the mappings that the kernel allows a process unless it was told
/// otherwise (vm.max_map_count). The table takes memory only as far as it is used.
pub const MAX_REGIONS: usize = 1 << 20;

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: usize,
    /// End.
    pub end: usize,
}

impl Range {
    /// No bytes.
    pub const NONE: Range = Range { start: 0, end: 0 };

    /// Whether all of the other is in it.
    pub fn covers(self, other: Range) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether some byte is in both.
    pub fn meets(self, other: Range) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The set of adopted ranges: disjoint, sorted, neighbours merged.
pub struct Regions {
    memory: Mapping,
    len: UnsafeCell<usize>,
}

// SAFETY: `len` and the array are written with the exclusive space lock held and read with the shared one.
unsafe impl Sync for Regions {}

impl Regions {
    /// An empty set.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new() -> Result<Regions, Errno> {
        Ok(Regions { memory: vm::map(MAX_REGIONS * size_of::<Range>(), OnFork::Copy)?, len: UnsafeCell::new(0) })
    }

    /// All ranges.
    pub fn all<'a>(&'a self, _: &'a Shared<'_>) -> &'a [Range] {
        self.slice()
    }

    fn slice(&self) -> &[Range] {
        // SAFETY: `len` ranges have been written, and the lock (see the type) keeps writers away.
        unsafe { core::slice::from_raw_parts(self.memory.as_ptr().cast::<Range>(), *self.len.get()) }
    }

    /// The range that holds `addr`.
    pub fn find(&self, lock: &Shared<'_>, addr: usize) -> Option<Range> {
        let all = self.all(lock);
        let i = all.partition_point(|r| r.end <= addr);
        all.get(i).copied().filter(|r| r.start <= addr)
    }

    /// The first range that ends after `addr`, cut to begin at `addr` or later.
    pub fn next(&self, lock: &Shared<'_>, addr: usize) -> Option<Range> {
        let all = self.all(lock);
        let r = *all.get(all.partition_point(|r| r.end <= addr))?;
        Some(Range { start: r.start.max(addr), end: r.end })
    }

    /// Where the first range begins that begins after `addr`.
    pub fn first_after(&self, _: &Exclusive<'_>, addr: usize) -> Option<usize> {
        let all = self.slice();
        all.get(all.partition_point(|r| r.start <= addr)).map(|r| r.start)
    }

    /// The parts of `range` that are not in the set.
    pub fn gaps<'a>(&'a self, _: &'a Exclusive<'_>, range: Range) -> impl Iterator<Item = Range> + 'a {
        let all = self.slice();
        let inside = &all[all.partition_point(|r| r.end <= range.start)..all.partition_point(|r| r.start < range.end)];
        let starts = core::iter::once(range.start).chain(inside.iter().map(|r| r.end));
        let ends = inside.iter().map(|r| r.start).chain(core::iter::once(range.end));
        starts.zip(ends).map(|(start, end)| Range { start, end }).filter(|gap| gap.start < gap.end)
    }

    /// Whether all of `range` is in the set.
    pub fn covers(&self, _: &Exclusive<'_>, range: Range) -> bool {
        let all = self.slice();
        let i = all.partition_point(|r| r.end <= range.start);
        all.get(i).is_some_and(|r| r.start <= range.start && range.end <= r.end)
    }

    /// Whether any of `range` is in the set.
    pub fn overlaps(&self, _: &Exclusive<'_>, range: Range) -> bool {
        let all = self.slice();
        all.get(all.partition_point(|r| r.end <= range.start)).is_some_and(|r| r.start < range.end)
    }

    /// Adds a range. False: the set is full.
    pub fn insert(&self, lock: &Exclusive<'_>, range: Range) -> bool {
        let all = self.slice();
        // Ranges that overlap or touch become one.
        let first = all.partition_point(|r| r.end < range.start);
        let last = all.partition_point(|r| r.start <= range.end);
        let merged = all[first..last].iter().fold(range, |m, r| Range { start: m.start.min(r.start), end: m.end.max(r.end) });
        self.splice(lock, first, last, &[merged])
    }

    /// Takes a range out.
    pub fn remove(&self, lock: &Exclusive<'_>, range: Range) {
        let all = self.slice();
        let first = all.partition_point(|r| r.end <= range.start);
        let last = all.partition_point(|r| r.start < range.end);
        if first >= last {
            return;
        }
        let head = Range { start: all[first].start, end: range.start };
        let tail = Range { start: range.end, end: all[last - 1].end };
        let mut rest = [Range { start: 0, end: 0 }; 2];
        let mut n = 0;
        for part in [head, tail] {
            if part.start < part.end {
                rest[n] = part;
                n += 1;
            }
        }
        if !self.splice(lock, first, last, &rest[..n]) {
            // No room to split: the tail stays registered and served, it is only never evicted.
            self.splice(lock, first, last, &rest[..1]);
        }
    }

    /// Replaces the ranges `first .. last` by `with`.
    fn splice(&self, _: &Exclusive<'_>, first: usize, last: usize, with: &[Range]) -> bool {
        // SAFETY: the exclusive lock is held; indices are inside the array, whose capacity is checked.
        unsafe {
            let len = *self.len.get();
            let new_len = len - (last - first) + with.len();
            if new_len > MAX_REGIONS {
                return false;
            }
            let base = self.memory.as_ptr().cast::<Range>();
            core::ptr::copy(base.add(last), base.add(first + with.len()), len - last);
            core::ptr::copy_nonoverlapping(with.as_ptr(), base.add(first), with.len());
            *self.len.get() = new_len;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::space::SpaceLock;
    use std::vec::Vec;

    fn r(start: usize, end: usize) -> Range {
        Range { start, end }
    }

    #[test]
    fn behaves_like_a_set_of_numbers() {
        let (lock, set) = (SpaceLock::new(), Regions::new().unwrap());
        let mut model = [false; 200];
        let mut seed = 12345u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((seed >> 33) % n) as usize
        };
        for _ in 0..2000 {
            let start = random(199);
            let end = start + 1 + random((200 - start) as u64 - 1).min(20);
            let add = random(2) == 0;
            {
                let x = lock.exclusive();
                if add {
                    assert!(set.insert(&x, r(start, end)));
                } else {
                    set.remove(&x, r(start, end));
                }
                model[start..end].fill(add);
                assert_eq!(set.covers(&x, r(start, end)), add);
                let (low, high) = (random(100), 100 + random(100));
                let gaps: Vec<_> = set.gaps(&x, r(low, high)).flat_map(|gap| gap.start..gap.end).collect();
                assert_eq!(gaps, (low..high).filter(|&i| !model[i]).collect::<Vec<_>>());
                let starts = (low + 1..200).find(|&i| model[i] && !model[i - 1]);
                assert_eq!(set.first_after(&x, low), starts);
            }
            let s = lock.shared();
            let listed: Vec<_> = set.all(&s).iter().flat_map(|r| r.start..r.end).collect();
            let expected: Vec<_> = (0..200).filter(|&i| model[i]).collect();
            assert_eq!(listed, expected);
            assert!(set.all(&s).windows(2).all(|w| w[0].end < w[1].start), "sorted and merged");
            let probe = random(200);
            assert_eq!(set.find(&s, probe).is_some(), model[probe]);
            assert_eq!(set.next(&s, probe).map(|r| r.start), (probe..200).find(|&i| model[i]));
        }
    }
}
