//! Chooses the objects of a cluster that are worth a write.
//!
//! A page costs a device the same whatever its compressed length, but frees only its object in the
//! pool. So objects far below the average stay. The kernel's zswap shrinker scales its writes by
//! the compression ratio for the same reason (Nhat Pham's series "workload-specific and memory
//! pressure-driven zswap writeback", 2023).

use crate::slot::CLUSTER_SLOTS;

/// Objects below this part of the average stay.
const PART: usize = 4;
/// Most small objects written between two larger ones: another I/O would take longer.
const GAP: usize = 8;

/// The least length that is worth a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Worth(usize);

impl Worth {
    pub(super) const ANY: Worth = Worth(1);

    /// For `objects` of `stored` bytes together. At least one is long enough.
    pub(super) fn among(stored: usize, objects: usize) -> Worth {
        Worth((stored / objects.max(1) / PART).max(1))
    }

    /// `lens`: bytes of each slot's object; 0 without.
    pub(super) fn choose(self, lens: &[u16; CLUSTER_SLOTS]) -> [bool; CLUSTER_SLOTS] {
        let mut chosen = [false; CLUSTER_SLOTS];
        let mut latest: Option<usize> = None;
        for (i, len) in lens.iter().map(|len| usize::from(*len)).enumerate() {
            if len == 0 {
                latest = None;
            } else if len >= self.0 {
                let from = latest.filter(|latest| i - latest - 1 <= GAP).unwrap_or(i);
                chosen[from..=i].fill(true);
                latest = Some(i);
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn chosen(worth: Worth, some: &[u16]) -> Vec<usize> {
        let mut lens = [0; CLUSTER_SLOTS];
        lens[..some.len()].copy_from_slice(some);
        let chosen = worth.choose(&lens);
        (0..CLUSTER_SLOTS).filter(|i| chosen[*i]).collect()
    }

    #[test]
    fn what_is_far_below_the_average_stays() {
        let worth = Worth::among(4000, 4);
        assert_eq!(chosen(worth, &[1000, 249, 250, 0, 30, 2000]), [0, 1, 2, 5], "249 lies between two that are written");
        assert_eq!(chosen(worth, &[30; 20]), [0; 0]);
        assert_eq!(chosen(Worth::ANY, &[30; 3]), [0, 1, 2]);
        assert_eq!(chosen(Worth::among(30 * 20, 20), &[30; 3]), [0, 1, 2], "where all are small none is too small");
        assert_eq!((Worth::among(0, 0), Worth::among(3, 1)), (Worth::ANY, Worth::ANY));
    }

    #[test]
    fn a_short_gap_is_written_with_what_is_around_it() {
        let worth = Worth::among(4000, 4);
        let around = |gap: usize| [&[1000][..], &std::vec![30; gap], &[1000]].concat();
        assert_eq!(chosen(worth, &around(GAP)).len(), GAP + 2);
        assert_eq!(chosen(worth, &around(GAP + 1)), [0, GAP + 2]);
        assert_eq!(chosen(worth, &[1000, 30, 0, 30, 1000]), [0, 4], "there are two I/Os anyway");
    }
}
