//! Which objects of a cluster are worth a write: the shrinker writes by what that frees.
//!
//! A page takes the same room and time on a device whatever it was compressed to, and what it frees in the pool is its object.
//! So objects are measured by what the pool holds on average: what is far smaller stays, and costs little there. The kernel's
//! zswap shrinker scales what it may write by the compression ratio for the same reason (Nhat Pham's series "workload-specific
//! and memory pressure-driven zswap writeback", 2023); an object's own length says it page by page.

use crate::slot::CLUSTER_SLOTS;

/// What is smaller than this part of the average is not worth a write.
const PART: usize = 4;
/// Most small objects between two larger ones that are written with them: another I/O would take longer than they do.
const GAP: usize = 8;

/// The least length that is worth a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Worth(usize);

impl Worth {
    /// Everything is.
    pub(super) const ANY: Worth = Worth(1);

    /// In a pool of this many objects of `stored` bytes together. Never all of them are too small.
    pub(super) fn among(stored: usize, objects: usize) -> Worth {
        Worth((stored / objects.max(1) / PART).max(1))
    }

    /// Which slots of a cluster are to be written. `lens`: bytes of the object of each slot, 0 where there is none to write.
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
