//! The program's locked ranges (mlock), whether the kernel holds them or the program only believes
//! so. A fixed table, for where nothing may be allocated.

use lowtide_sys::Range;

/// Most ranges that are remembered.
pub const MAX_LOCKS: usize = 128;

/// Who keeps the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// The kernel: the pages stay in RAM.
    Honoured,
    /// lowtide: the call returned success, and nothing was locked.
    Ignored,
}

/// The locked ranges: disjoint, sorted.
#[derive(Debug)]
pub struct Locks {
    ranges: [(Range, Lock); MAX_LOCKS],
    len: usize,
}

impl Locks {
    /// An empty table.
    pub const fn new() -> Locks {
        Locks { ranges: [(Range { start: 0, end: 0 }, Lock::Ignored); MAX_LOCKS], len: 0 }
    }

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn all(&self) -> &[(Range, Lock)] {
        &self.ranges[..self.len]
    }

    /// Bytes that are locked this way.
    pub fn bytes(&self, lock: Lock) -> usize {
        self.all().iter().filter(|(_, l)| *l == lock).map(|(r, _)| r.end - r.start).sum()
    }

    /// Bytes of `range` that are locked this way, or either way.
    pub fn overlap(&self, range: Range, lock: Option<Lock>) -> usize {
        let parts = self.all().iter().filter(|(_, l)| lock.is_none_or(|lock| lock == *l));
        parts.map(|(r, _)| r.end.min(range.end).saturating_sub(r.start.max(range.start))).sum()
    }

    /// The address of the first byte of `range` that is locked this way.
    pub fn first(&self, range: Range, lock: Lock) -> Option<usize> {
        let (found, _) = self.all().iter().find(|(r, l)| *l == lock && r.start < range.end && range.start < r.end)?;
        Some(found.start.max(range.start))
    }

    /// Locks a range. Kernel locks stay kernel locks. A full table forgets ranges, so less is
    /// counted.
    pub fn lock(&mut self, range: Range, lock: Lock) {
        if lock == Lock::Honoured {
            self.unlock(range);
            self.insert(range, lock);
            return;
        }
        let mut start = range.start;
        while start < range.end {
            let next = self.all().iter().map(|(r, _)| *r).find(|r| r.end > start);
            let end = next.map_or(range.end, |r| r.start.min(range.end));
            if start < end {
                self.insert(Range { start, end }, lock);
            }
            start = next.map_or(range.end, |r| r.end).max(end);
        }
    }

    /// A range was unlocked or unmapped.
    pub fn unlock(&mut self, range: Range) {
        let mut i = 0;
        while i < self.len {
            let (r, lock) = self.ranges[i];
            if r.end <= range.start || r.start >= range.end {
                i += 1;
                continue;
            }
            self.ranges.copy_within(i + 1..self.len, i);
            self.len -= 1;
            for part in [Range { start: r.start, end: range.start }, Range { start: range.end, end: r.end }] {
                if part.start < part.end {
                    self.insert(part, lock);
                    i += usize::from(part.start < range.start);
                }
            }
        }
    }

    /// mremap. Grown memory is locked like the end before it.
    pub fn remapped(&mut self, from: Range, to: Range) {
        let mut moved = [(Range { start: 0, end: 0 }, Lock::Ignored); MAX_LOCKS];
        let mut n = 0;
        for (r, lock) in self.all() {
            let (start, end) = (r.start.max(from.start), r.end.min(from.end));
            if start < end {
                let grown = if end == from.end { to.end } else { to.start + (end - from.start) };
                let part = Range { start: to.start + (start - from.start), end: grown.min(to.end) };
                if part.start < part.end {
                    moved[n] = (part, *lock);
                    n += 1;
                }
            }
        }
        self.unlock(from);
        self.unlock(to);
        for (part, lock) in &moved[..n] {
            self.insert(*part, *lock);
        }
    }

    /// Merges neighbours of the same kind.
    fn insert(&mut self, range: Range, lock: Lock) {
        let at = self.all().partition_point(|(r, _)| r.start < range.start);
        let joins = |i: usize, edge: fn(&Range) -> usize, with: usize| {
            self.all().get(i).is_some_and(|(r, l)| *l == lock && edge(r) == with)
        };
        let before = at > 0 && joins(at - 1, |r| r.end, range.start);
        let after = joins(at, |r| r.start, range.end);
        match (before, after) {
            (true, true) => {
                self.ranges[at - 1].0.end = self.ranges[at].0.end;
                self.ranges.copy_within(at + 1..self.len, at);
                self.len -= 1;
            }
            (true, false) => self.ranges[at - 1].0.end = range.end,
            (false, true) => self.ranges[at].0.start = range.start,
            (false, false) if self.len < MAX_LOCKS => {
                self.ranges.copy_within(at..self.len, at + 1);
                self.ranges[at] = (range, lock);
                self.len += 1;
            }
            (false, false) => {}
        }
    }
}

impl Default for Locks {
    fn default() -> Locks {
        Locks::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Model([Option<Lock>; 100]);

    impl Model {
        fn count(&self, range: Range, lock: Option<Lock>) -> usize {
            self.0[range.start..range.end].iter().filter(|l| l.is_some() && (lock.is_none() || **l == lock)).count()
        }

        fn remap(&mut self, from: Range, to: Range) {
            let old: std::vec::Vec<_> = self.0[from.start..from.end].to_vec();
            self.0[from.start..from.end].fill(None);
            self.0[to.start..to.end].fill(None);
            for i in 0..to.end - to.start {
                self.0[to.start + i] = *old.get(i).unwrap_or(old.last().unwrap());
            }
        }
    }

    #[test]
    fn counts_each_byte_once() {
        let (mut locks, mut model) = (Locks::new(), Model([None; 100]));
        let mut seed = 99u64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        for _ in 0..20_000 {
            let start = random(99);
            let range = Range { start, end: start + 1 + random((100 - start).min(30)) };
            match random(5) {
                0 => {
                    locks.lock(range, Lock::Honoured);
                    model.0[range.start..range.end].fill(Some(Lock::Honoured));
                }
                1 | 2 => {
                    locks.lock(range, Lock::Ignored);
                    for unit in model.0[range.start..range.end].iter_mut().filter(|unit| unit.is_none()) {
                        *unit = Some(Lock::Ignored);
                    }
                }
                3 => {
                    locks.unlock(range);
                    model.0[range.start..range.end].fill(None);
                }
                _ => {
                    let start = random(100);
                    let to = Range { start, end: start + 1 + random(100 - start) };
                    if to.end <= range.start || range.end <= to.start {
                        locks.remapped(range, to);
                        model.remap(range, to);
                    }
                }
            }
            let whole = Range { start: 0, end: 100 };
            for lock in [Lock::Honoured, Lock::Ignored] {
                assert_eq!(locks.bytes(lock), model.count(whole, Some(lock)));
                assert_eq!(locks.overlap(range, Some(lock)), model.count(range, Some(lock)));
                assert_eq!(locks.first(range, lock), (range.start..range.end).find(|unit| model.0[*unit] == Some(lock)));
            }
            assert_eq!(locks.overlap(range, None), model.count(range, None));
            assert!(locks.all().windows(2).all(|w| {
                let ((a, kind_a), (b, kind_b)) = (w[0], w[1]);
                a.end < b.start || a.end == b.start && kind_a != kind_b
            }));
        }
    }

    #[test]
    fn forgets_when_it_is_full() {
        let mut locks = Locks::new();
        for i in 0..MAX_LOCKS + 10 {
            locks.lock(Range { start: 3 * i, end: 3 * i + 1 }, Lock::Ignored);
        }
        assert_eq!((locks.len(), locks.bytes(Lock::Ignored)), (MAX_LOCKS, MAX_LOCKS));
        locks.unlock(Range { start: 0, end: 4 * MAX_LOCKS });
        assert!(locks.is_empty());
    }
}
