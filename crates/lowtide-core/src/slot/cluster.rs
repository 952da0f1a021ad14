//! A cluster: 512 slots with their own lock.

use core::sync::atomic::AtomicU32;

use crate::lock::Lock;
use crate::table::Zeroed;

/// Slots in a cluster (2 MiB of pages).
pub const CLUSTER_SLOTS: usize = 512;
/// Largest order: a whole cluster.
pub const MAX_ORDER: u32 = CLUSTER_SLOTS.ilog2();

const WORDS: usize = CLUSTER_SLOTS / 64;

/// What an allocation asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// 2^order slots at a multiple of that.
    Aligned(u32),
    /// This many consecutive slots, 1 to 512, anywhere in a cluster of order 0.
    Run(usize),
}

impl Need {
    pub(super) fn order(self) -> u32 {
        match self {
            Need::Aligned(order) => order,
            Need::Run(_) => 0,
        }
    }

    pub(super) fn slots(self) -> usize {
        match self {
            Need::Aligned(order) => 1 << order,
            Need::Run(n) => n,
        }
    }
}

/// The list that a cluster is on. One at a time; changes with the cluster's lock and the area's list lock both held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum ListState {
    /// Off every list: never used, or taken off by the thread that holds its lock.
    None = 0,
    /// No slot in use.
    Free,
    /// Some slots in use; the latest change was a free.
    NonFull,
    /// Some slots in use; the latest change was an allocation.
    Frag,
    /// All slots in use.
    Full,
}

/// What a cluster's lock protects.
#[derive(Debug)]
pub(super) struct Inner {
    /// One bit per slot, set when in use.
    map: [u64; WORDS],
    /// Bits set.
    pub used: u16,
    /// Slots in use that this process has freed while a forked child still refers to them.
    pub zombies: u16,
    /// The order that the cluster serves, from its first slot until it is empty again.
    pub order: u8,
    pub state: ListState,
}

/// A cluster. All zeros: never used.
#[derive(Debug)]
pub(super) struct Cluster {
    pub inner: Lock<Inner>,
    /// Neighbours on the list, as index plus one, 0 for none. Protected by the area's list lock.
    pub next: AtomicU32,
    pub prev: AtomicU32,
}

// SAFETY: a free lock, an empty bitmap, ListState::None (0) and links to nothing are all zeros; nothing in it needs dropping.
unsafe impl Zeroed for Cluster {}

/// The bits of a word at which an aligned run of 2^order slots can begin, order 0 to 5.
const STARTS: [u64; 6] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
];

impl Inner {
    /// Whether allocations of `order` may be tried here.
    pub(super) fn usable(&self, order: u32) -> bool {
        let open = matches!(self.state, ListState::None | ListState::Free | ListState::NonFull | ListState::Frag);
        open && (order == 0 || self.used == 0 || self.order as u32 == order)
    }

    /// Takes the lowest slots that satisfy `need` and returns the first, by index in the cluster.
    pub(super) fn take(&mut self, need: Need) -> Option<usize> {
        let first = match need {
            Need::Aligned(order) => self.find_aligned(order),
            Need::Run(n) => self.find_run(n),
        }?;
        if self.used == 0 {
            self.order = need.order() as u8;
        }
        let n = need.slots();
        for slot in first..first + n {
            debug_assert!(!self.is_used(slot));
            self.map[slot / 64] |= 1 << (slot % 64);
        }
        self.used += n as u16;
        Some(first)
    }

    fn find_aligned(&self, order: u32) -> Option<usize> {
        if let Some(starts) = STARTS.get(order as usize) {
            return self.map.iter().enumerate().find_map(|(i, word)| {
                let mut free = !word;
                // Bit b stays when the 2^k bits from b on are all free, for k up to the order.
                for k in 0..order {
                    free &= free >> (1 << k);
                }
                free &= starts;
                (free != 0).then(|| i * 64 + free.trailing_zeros() as usize)
            });
        }
        let words = 1usize << (order - 6);
        self.map.chunks(words).position(|chunk| chunk.iter().all(|w| *w == 0)).map(|i| i * words * 64)
    }

    fn find_run(&self, n: usize) -> Option<usize> {
        if n > CLUSTER_SLOTS - self.used as usize {
            return None;
        }
        let (mut at, mut run) = (0, 0);
        while at < CLUSTER_SLOTS {
            let left = 64 - at % 64;
            let bits = self.map[at / 64] >> (at % 64);
            let free = (bits.trailing_zeros() as usize).min(left);
            run += free;
            at += free;
            if run >= n {
                return Some(at - run);
            }
            if free < left {
                run = 0;
                at += (bits >> free).trailing_ones() as usize;
            }
        }
        None
    }

    /// Marks a free slot as in use, for slots that must never be given out.
    pub(super) fn block(&mut self, slot: usize) {
        debug_assert!(!self.is_used(slot));
        self.map[slot / 64] |= 1 << (slot % 64);
        self.used += 1;
    }

    /// Frees a slot. False, and nothing changes, if it is free.
    pub(super) fn give(&mut self, slot: usize) -> bool {
        if !self.is_used(slot) {
            return false;
        }
        self.map[slot / 64] &= !(1 << (slot % 64));
        self.used -= 1;
        true
    }

    pub(super) fn is_used(&self, slot: usize) -> bool {
        self.map[slot / 64] >> (slot % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn empty() -> Inner {
        Inner { map: [0; WORDS], used: 0, zombies: 0, order: 0, state: ListState::None }
    }

    #[test]
    fn small_enough_for_the_metadata_budget() {
        assert!(size_of::<Cluster>() <= 104, "{} bytes: a fifth of a byte per slot", size_of::<Cluster>());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn take_finds_the_lowest_run_or_there_is_none(
            used in prop::collection::vec(0usize..CLUSTER_SLOTS, 0..60), order in 0u32..=MAX_ORDER,
        ) {
            let mut c = empty();
            for u in used {
                if !c.is_used(u) {
                    c.block(u);
                }
            }
            let n = 1usize << order;
            let want = (0..CLUSTER_SLOTS).step_by(n).find(|s| (*s..s + n).all(|i| !c.is_used(i)));
            let before = c.used;
            prop_assert_eq!(c.find_run(n), (0..=CLUSTER_SLOTS - n).find(|s| (*s..s + n).all(|i| !c.is_used(i))));
            prop_assert_eq!(c.take(Need::Aligned(order)), want);
            if let Some(first) = want {
                prop_assert_eq!(c.used as usize, before as usize + n);
                prop_assert!((first..first + n).all(|i| c.is_used(i)));
                for i in first..first + n {
                    prop_assert!(c.give(i) && !c.give(i));
                }
            }
            prop_assert_eq!(c.used, before);
        }
    }
}
