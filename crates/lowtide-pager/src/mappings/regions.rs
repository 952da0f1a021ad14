//! The registered address ranges, whose pages may be evicted.
//!
//! A sorted array in a mapping of its own, so that applying an event never allocates. Changed under
//! the exclusive space lock, read under the shared one.

use core::cell::UnsafeCell;

use lowtide_core::vm::{self, Mapping, OnFork};
use lowtide_sys::Range;
use rustix::io::Errno;

use crate::pages::space::{Exclusive, Shared};

/// 16 times the default limit of mappings (vm.max_map_count). Only used entries take memory.
pub const MAX_REGIONS: usize = 1 << 20;

/// The set of registered ranges: disjoint, sorted, neighbours merged.
pub struct Regions {
    memory: Mapping,
    shape: UnsafeCell<Shape>,
}

/// `low` ranges at the array's beginning, the `high` ones at its end. The gap is where the latest
/// change was, and mostly the next: the kernel places mappings from top to bottom, and a look at
/// them goes upwards. So a change moves few of many ranges.
#[derive(Debug, Clone, Copy, Default)]
struct Shape {
    low: usize,
    high: usize,
    #[cfg(test)]
    moved: usize,
}

// SAFETY: `shape` and the array are written under the exclusive space lock and read under the
// shared one.
unsafe impl Sync for Regions {}

impl Regions {
    /// An empty set.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new() -> Result<Regions, Errno> {
        let memory = vm::map(MAX_REGIONS * size_of::<Range>(), OnFork::Copy)?;
        Ok(Regions { memory, shape: UnsafeCell::default() })
    }

    fn shape(&self) -> Shape {
        // SAFETY: the lock (see the type) keeps writers away.
        unsafe { *self.shape.get() }
    }

    fn count(&self) -> usize {
        let Shape { low, high, .. } = self.shape();
        low + high
    }

    fn get(&self, i: usize) -> Option<Range> {
        let Shape { low, high, .. } = self.shape();
        let at = if i < low { i } else { i + (MAX_REGIONS - low - high) };
        // SAFETY: the ranges below `low` and the last `high` were written; the lock keeps writers
        // away.
        (i < low + high).then(|| unsafe { *self.memory.as_ptr().cast::<Range>().add(at) })
    }

    /// All ranges that are `before` come first.
    fn position(&self, before: impl Fn(Range) -> bool) -> usize {
        let (mut first, mut end) = (0, self.count());
        while first < end {
            let middle = first.midpoint(end);
            if self.get(middle).is_some_and(&before) { first = middle + 1 } else { end = middle }
        }
        first
    }

    fn first_ending_after(&self, addr: usize) -> Option<Range> {
        self.get(self.position(|r| r.end <= addr))
    }

    /// The range that holds `addr`.
    pub fn find(&self, _: &Shared<'_>, addr: usize) -> Option<Range> {
        self.first_ending_after(addr).filter(|r| r.start <= addr)
    }

    /// The first range that ends after `addr`, cut to begin at `addr` or later.
    pub fn next(&self, _: &Shared<'_>, addr: usize) -> Option<Range> {
        self.first_ending_after(addr).map(|r| Range { start: r.start.max(addr), end: r.end })
    }

    /// The first part of `range` that is in the set.
    pub fn first_in(&self, _: &Exclusive<'_>, range: Range) -> Option<Range> {
        let first = self.first_ending_after(range.start)?;
        let part = first.within(range);
        (part.start < part.end).then_some(part)
    }

    /// The start of the first range that begins after `addr`.
    pub fn first_after(&self, _: &Exclusive<'_>, addr: usize) -> Option<usize> {
        self.get(self.position(|r| r.start <= addr)).map(|r| r.start)
    }

    /// The parts of `range` that are not in the set.
    pub fn gaps<'a>(&'a self, _: &'a Exclusive<'_>, range: Range) -> impl Iterator<Item = Range> + 'a {
        let inside = self.position(|r| r.end <= range.start)..self.position(|r| r.start < range.end);
        let inside = move || inside.clone().filter_map(|i| self.get(i));
        let starts = core::iter::once(range.start).chain(inside().map(|r| r.end));
        let ends = inside().map(|r| r.start).chain(core::iter::once(range.end));
        starts.zip(ends).map(|(start, end)| Range { start, end }).filter(|gap| gap.start < gap.end)
    }

    /// Whether all of `range` is in the set.
    pub fn covers(&self, _: &Exclusive<'_>, range: Range) -> bool {
        self.first_ending_after(range.start).is_some_and(|r| r.covers(range))
    }

    /// Whether any of `range` is in the set.
    pub fn overlaps(&self, _: &Exclusive<'_>, range: Range) -> bool {
        self.first_ending_after(range.start).is_some_and(|r| r.start < range.end)
    }

    /// Adds a range. False: the set is full.
    pub fn insert(&self, lock: &Exclusive<'_>, range: Range) -> bool {
        let first = self.position(|r| r.end < range.start);
        let last = self.position(|r| r.start <= range.end);
        let merged = (first..last)
            .filter_map(|i| self.get(i))
            .fold(range, |m, r| Range { start: m.start.min(r.start), end: m.end.max(r.end) });
        self.splice(lock, first, last, &[merged])
    }

    /// Takes a range out.
    pub fn remove(&self, lock: &Exclusive<'_>, range: Range) {
        let first = self.position(|r| r.end <= range.start);
        let last = self.position(|r| r.start < range.end);
        let (Some(lowest), Some(highest)) = (self.get(first), last.checked_sub(1).and_then(|last| self.get(last))) else {
            return;
        };
        if first >= last {
            return;
        }
        let head = Range { start: lowest.start, end: range.start };
        let tail = Range { start: range.end, end: highest.end };
        let mut rest = [Range { start: 0, end: 0 }; 2];
        let mut n = 0;
        for part in [head, tail] {
            if part.start < part.end {
                rest[n] = part;
                n += 1;
            }
        }
        if !self.splice(lock, first, last, &rest[..n]) {
            // No room to split: the tail is still served, but never evicted.
            self.splice(lock, first, last, &rest[..1]);
        }
    }

    fn splice(&self, _: &Exclusive<'_>, first: usize, last: usize, with: &[Range]) -> bool {
        if self.count() - (last - first) + with.len() > MAX_REGIONS {
            return false;
        }
        let base = self.memory.as_ptr().cast::<Range>();
        // SAFETY: the exclusive lock is held; `first` and `last` are within the count, and the new
        // ranges fit.
        unsafe {
            let shape = &mut *self.shape.get();
            // Moves the gap before `first`.
            let (low, high) = (base.add(shape.low), base.add(MAX_REGIONS - shape.high));
            let n = shape.low.abs_diff(first);
            if first < shape.low {
                core::ptr::copy(low.sub(n), high.sub(n), n);
                shape.high += n;
            } else {
                core::ptr::copy(high, low, n);
                shape.high -= n;
            }
            shape.low = first;
            #[cfg(test)]
            {
                shape.moved += n;
            }
            shape.high -= last - first;
            for range in with.iter().rev() {
                shape.high += 1;
                base.add(MAX_REGIONS - shape.high).write(*range);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::space::SpaceLock;
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
            let all: Vec<_> = (0..set.count()).map(|i| set.get(i).unwrap()).collect();
            let listed: Vec<_> = all.iter().flat_map(|r| r.start..r.end).collect();
            let expected: Vec<_> = (0..200).filter(|&i| model[i]).collect();
            assert_eq!(listed, expected);
            assert!(all.windows(2).all(|w| w[0].end < w[1].start), "sorted and merged");
            let probe = random(200);
            assert_eq!(set.find(&s, probe).is_some(), model[probe]);
            assert_eq!(set.next(&s, probe).map(|r| r.start), (probe..200).find(|&i| model[i]));
        }
    }

    /// As the kernel places mappings, and as a look at them goes.
    #[test]
    fn ranges_that_come_in_order_move_few_others() {
        const RANGES: usize = 30_000;
        let isolated = |i: usize| r(100 + 10 * i, 105 + 10 * i);
        let downwards: Vec<_> = (0..RANGES).rev().map(isolated).collect();
        let upwards: Vec<_> = (0..RANGES).map(isolated).collect();
        for order in [downwards, upwards] {
            let (lock, set) = (SpaceLock::new(), Regions::new().unwrap());
            let x = lock.exclusive();
            assert!(set.insert(&x, r(0, 5)) && set.insert(&x, r(1 << 40, (1 << 40) + 5)));
            assert!(order.iter().all(|range| set.insert(&x, *range)));
            assert_eq!(set.count(), RANGES + 2);
            assert!(set.shape().moved <= 2 * RANGES, "{} ranges were moved", set.shape().moved);
            order.iter().for_each(|range| set.remove(&x, *range));
            assert_eq!(set.count(), 2);
            assert!(set.shape().moved <= 4 * RANGES, "{} ranges were moved", set.shape().moved);
        }
    }
}
