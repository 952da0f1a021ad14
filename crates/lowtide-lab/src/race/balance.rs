//! A group's share of memory: it and the kernel's compressed pool, which no group is charged for,
//! must together hold as much as lowtide may.

/// A group's memory at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Held {
    pub resident: u64,
    /// Swapped out, before compression.
    pub stored: u64,
    /// The pool's memory for that.
    pub pool: u64,
}

impl Held {
    pub fn demand(self) -> u64 {
        self.resident + self.stored
    }

    pub fn used(self) -> u64 {
        self.resident + self.pool
    }

    /// Pool bytes for a stored byte; 1, without a promise, if nothing is swapped out.
    pub fn ratio(self) -> f64 {
        if self.stored == 0 { 1.0 } else { self.pool as f64 / self.stored as f64 }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Highest {
    /// The sample with the largest demand.
    pub demand: Held,
    /// The sample with the most memory used.
    pub used: Held,
}

impl Highest {
    pub fn add(&mut self, held: Held) {
        if held.demand() > self.demand.demand() {
            self.demand = held;
        }
        if held.used() > self.used.used() {
            self.used = held;
        }
    }
}

/// With a smaller share of the limit, running a program makes no sense.
const LEAST_SHARE: f64 = 0.10;

/// Bytes for the group so that it and its pool hold `limit` at the highest demand: with m of D in
/// memory the pool has r (D - m), and m + r (D - m) = L. `None`: the compressed data leaves less
/// than a tenth of the limit.
pub fn for_group(limit: u64, demand: Held) -> Option<u64> {
    let (l, r) = (limit as f64, demand.ratio());
    let m = (l - r * demand.demand() as f64) / (1.0 - r);
    (r < 1.0 && m >= l * LEAST_SHARE).then_some(m.round() as u64)
}

/// A better value than `group`, for which `used` was the highest sample: a byte more for the group
/// is a compressed byte less in the pool.
pub fn corrected(group: u64, limit: u64, used: Held) -> u64 {
    let step = (limit as f64 - used.used() as f64) / (1.0 - used.ratio()).max(0.1);
    (group as f64 + step).max(limit as f64 * LEAST_SHARE) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool that needs 0.4 of what it stores.
    fn with(resident: u64, demand: u64) -> Held {
        let stored = demand - resident;
        Held { resident, stored, pool: stored * 2 / 5 }
    }

    #[test]
    fn group_and_pool_come_to_the_limit() {
        let m = for_group(700, with(700, 1000)).unwrap();
        assert_eq!(m, 500);
        assert_eq!(with(m, 1000).used(), 700);
    }

    #[test]
    fn where_the_compressed_data_alone_is_too_much_there_is_no_such_size() {
        assert_eq!(for_group(400, with(400, 1000)), None);
        assert_eq!(for_group(440, with(440, 1000)), Some(67), "15 % are enough");
        assert_eq!(for_group(700, Held { resident: 700, stored: 300, pool: 310 }), None, "does not compress");
        assert_eq!(for_group(700, Held { resident: 700, ..Held::default() }), None, "nothing known");
    }

    #[test]
    fn a_correction_hits_the_limit() {
        let seen = with(520, 1000);
        let group = corrected(520, 700, seen);
        assert!((698..=702).contains(&with(group, 1000).used()), "{group}");
        assert!(corrected(10, 700, Held { resident: 2000, ..Held::default() }) >= 70);
    }

    #[test]
    fn the_highest_of_each_kind_is_kept() {
        let mut highest = Highest::default();
        [with(700, 1000), with(750, 900), with(100, 200)].into_iter().for_each(|held| highest.add(held));
        assert_eq!((highest.demand, highest.used), (with(700, 1000), with(700, 1000)));
        highest.add(with(890, 950));
        assert_eq!((highest.demand, highest.used), (with(700, 1000), with(890, 950)));
    }
}
