//! Watermarks, all derived from the limit.

/// The watermarks of a limit, in bytes. At every limit from 16 MiB on, calm or not: [`prepare`] <=
/// [`earliest_register`] <= [`register`] <= [`giving_way`] <= [`low`] <= [`high`] <= the limit.
///
/// [`prepare`]: Watermarks::prepare
/// [`earliest_register`]: Watermarks::earliest_register
/// [`giving_way`]: Watermarks::giving_way
/// [`register`]: Watermarks::register
/// [`low`]: Watermarks::low
/// [`high`]: Watermarks::high
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    limit: u64,
    /// All growth is counted (`calm.rs`): a smaller reserve.
    calm: bool,
}

impl Watermarks {
    /// Watermarks of `limit` bytes, not calm.
    pub const fn of(limit: u64) -> Watermarks {
        Watermarks { limit, calm: false }
    }

    /// The same limit, calm or not.
    #[must_use]
    pub const fn when_calm(self, calm: bool) -> Watermarks {
        Watermarks { calm, ..self }
    }

    /// The limit.
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// The agent prepares registration above this.
    pub fn prepare(self) -> u64 {
        self.register() / 4
    }

    /// Memory is registered above this: the limit less touches while lowtide sleeps.
    pub fn register(self) -> u64 {
        self.limit - (self.limit / 8).clamp(4 << 20, 256 << 20).min(self.limit / 2)
    }

    /// No registration below.
    pub fn earliest_register(self) -> u64 {
        self.register() / 2
    }

    /// Above this, faults wake the reclaimer, and handlers detach.
    pub fn high(self) -> u64 {
        self.limit.saturating_sub(self.reserve((self.limit / 32).clamp(1 << 20, 32 << 20), 2 << 20))
    }

    /// The reclaimer evicts above this.
    pub fn low(self) -> u64 {
        self.limit.saturating_sub(self.reserve((self.limit / 20).clamp(1_500 << 10, 48 << 20), 6 << 20))
    }

    /// For a process that gives way: below `low` by what others fault in before its next look.
    pub fn giving_way(self) -> u64 {
        self.low().saturating_sub((self.limit / 16).clamp(1 << 20, 64 << 20))
    }

    /// Bytes a process keeps even above the limit, lest it only wait for pages: an eighth of the
    /// limit, 4 to 64 MiB, over the registered processes.
    pub fn working_minimum(self, processes: u64) -> u64 {
        ((self.limit / 8).clamp(4 << 20, 64 << 20) / processes.max(1)).max(512 << 10)
    }

    /// Most bytes of all pools, beside `rest` of lowtide and a working minimum.
    pub fn room_for_pools(self, rest: u64) -> u64 {
        self.limit.saturating_sub(rest.saturating_add(self.working_minimum(1))).max(self.least_pools())
    }

    /// What all pools together may always have.
    pub fn least_pools(self) -> u64 {
        self.limit / 16
    }

    /// `most`, a quarter if calm, but at least `least`, touched during the shortest nap.
    fn reserve(self, most: u64, least: u64) -> u64 {
        if self.calm { most.min((most / 4).max(least)) } else { most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_in_order_at_every_size() {
        for mib in [16, 17, 32, 64, 100, 512, 4096, 100_000] {
            let marks = Watermarks::of(mib << 20);
            let calm = marks.when_calm(true);
            assert!(calm.low() < calm.high() && calm.high() < calm.limit(), "calm, {mib} MiB");
            assert!(calm.giving_way() < calm.low(), "an idle process begins first: {mib} MiB");
            assert!(marks.prepare() < marks.earliest_register() && marks.earliest_register() < marks.register(), "{mib} MiB");
            assert!(marks.register() <= marks.giving_way(), "{mib} MiB");
            assert!(marks.low() < marks.high() && marks.high() < marks.limit(), "{mib} MiB");
            assert!(marks.register() <= marks.low(), "memory is registered before it must be evicted: {mib} MiB");
            assert!(marks.low() <= calm.low() && marks.high() <= calm.high(), "calm times keep less free: {mib} MiB");
        }
    }

    #[test]
    fn those_of_a_limit_smaller_than_their_distance_are_no_huge_ones() {
        for kib in [0, 64, 1024, 1400, 2048] {
            for calm in [false, true] {
                let m = Watermarks::of(kib << 10).when_calm(calm);
                let all = [m.giving_way(), m.low(), m.high(), m.limit()];
                assert!(all.is_sorted(), "{kib} KiB: {all:?}");
            }
        }
    }
}
