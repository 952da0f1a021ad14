//! Marks: how often a page was needed soon after leaving. Heuristic, unlocked.
//!
//! A page proves hot by a fault while staged, or after few other evictions
//! (the refault distance of Linux's `workingset.c`). Each time it stays longer, as in S3-FIFO and
//! CLOCK-Pro; a late fault resets it.

/// Two bits of refault class; six of rounds to spare, or of the epoch of eviction while out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark(u8);

/// Rounds spared, by class: early returns in a row.
const ROUNDS: [u8; 4] = [0, 2, 8, 30];
/// Epochs of an early return. An epoch evicts a 16th of the limit.
const SOON: u8 = 1;
const CLASS_SHIFT: u32 = 6;
const REST: u8 = (1 << CLASS_SHIFT) - 1;
const _: () = assert!(ROUNDS[3] <= REST);

impl Mark {
    pub const fn from_bits(bits: u8) -> Mark {
        Mark(bits)
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    const fn class(self) -> u8 {
        self.0 >> CLASS_SHIFT
    }

    /// One round less. None: evict.
    pub const fn spared(self) -> Option<Mark> {
        if self.0 & REST == 0 { None } else { Some(Mark(self.0 - 1)) }
    }

    pub const fn leaves(self, epoch: u8) -> Mark {
        Mark(self.class() << CLASS_SHIFT | epoch & REST)
    }

    pub const fn age(self, epoch: u8) -> u8 {
        (epoch & REST).wrapping_sub(self.0 & REST) & REST
    }

    pub fn came_back(self, age: u8) -> Mark {
        if age <= SOON { self.came_back_soon() } else { Mark::default() }
    }

    pub fn came_back_soon(self) -> Mark {
        let class = (self.class() + 1).min(ROUNDS.len() as u8 - 1);
        Mark(class << CLASS_SHIFT | ROUNDS[class as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_soon_stays_longer_each_time() {
        let mut mark = Mark::default();
        assert_eq!(mark.spared(), None, "nothing is known of it");
        for rounds in [2, 8, 30, 30] {
            mark = mark.leaves(62).came_back_soon();
            for _ in 0..rounds {
                mark = mark.spared().unwrap();
            }
            assert_eq!(mark.spared(), None);
        }
        assert_eq!(Mark::from_bits(mark.leaves(62).bits()).age(62 + 5), 5, "over the end of the count");
        let twice = Mark::default().leaves(0).came_back_soon().spared().and_then(Mark::spared).unwrap();
        assert_eq!(twice.spared(), None, "forgotten");
        assert_eq!(Mark::default().came_back(SOON).spared(), Mark::default().came_back_soon().spared());
        assert_eq!(twice.came_back(SOON + 1), Mark::default(), "late");
    }
}
