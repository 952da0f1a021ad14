//! How full clusters are: would sorting them by fill pay?

use super::area::Area;
use super::cluster::CLUSTER_SLOTS;

/// Classes of used slots: none; up to one eighth, two eighths, ... all but one; all.
pub const FILLS: usize = 10;
const PARTS: usize = FILLS - 2;

/// Clusters of an area, by used slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fills {
    /// Of clusters ever used, by class: see [`FILLS`].
    pub opened: [u64; FILLS],
    /// Clusters never used.
    pub never: u64,
}

impl Fills {
    /// Saturates, for untrusted numbers.
    pub fn add(&mut self, other: Fills) {
        self.opened.iter_mut().zip(other.opened).for_each(|(to, from)| *to = to.saturating_add(from));
        self.never = self.never.saturating_add(other.never);
    }
}

fn class(used: usize, slots: usize) -> usize {
    match used {
        0 => 0,
        used if used >= slots => FILLS - 1,
        used => (used * PARTS).div_ceil(slots),
    }
}

impl Area {
    /// How full the clusters are. Locks each in turn: no snapshot. Slot 0 counts as used.
    pub fn fills(&self) -> Fills {
        let (clusters, opened) = (self.clusters(), self.opened_clusters());
        let mut fills = Fills::default();
        for i in 0..opened {
            let slots = (self.slots() as usize - i * CLUSTER_SLOTS).min(CLUSTER_SLOTS);
            // Slots beyond the end count as used.
            let used = usize::from(clusters.lock(i).count) + slots - CLUSTER_SLOTS;
            fills.opened[class(used, slots)] += 1;
        }
        fills.never = self.slots().div_ceil(CLUSTER_SLOTS as u64) - opened as u64;
        fills
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;
    use crate::slot::AreaConfig;

    #[test]
    fn each_count_of_slots_has_a_class() {
        assert_eq!([0, 1, 64, 65, 128, 511, 512].map(|used| class(used, 512)), [0, 1, 1, 2, 2, 8, 9]);
        assert_eq!([0, 1, 2, 3].map(|used| class(used, 3)), [0, 3, 6, 9], "a short last cluster");
        assert!((0..=512).map(|used| class(used, 512)).is_sorted());
    }

    #[test]
    fn clusters_are_counted_once_by_what_is_used_of_them() {
        // Three whole clusters and one of 88 slots.
        let slots = 3 * CLUSTER_SLOTS as u64 + 88;
        let area = Area::new(None, AreaConfig { slots, ..AreaConfig::default() }).unwrap();
        let opened = |classes: &[(usize, u64)]| {
            let mut opened = [0; FILLS];
            classes.iter().for_each(|(class, n)| opened[*class] = *n);
            opened
        };
        assert_eq!(area.fills(), Fills { opened: opened(&[]), never: 4 });
        let all: std::vec::Vec<u64> = core::iter::from_fn(|| area.alloc(0)).collect();
        assert_eq!(all.len() as u64, slots - 1);
        assert_eq!(area.fills(), Fills { opened: opened(&[(9, 4)]), never: 0 });
        let in_cluster = |i: u64| i * 512..(i * 512 + 512).min(slots);
        // All of the last, half of the third, one of the second, and all of the first but slot 0.
        in_cluster(3).for_each(|slot| area.release(slot));
        in_cluster(2).filter(|slot| slot % 2 == 0).for_each(|slot| area.release(slot));
        area.release(700);
        in_cluster(0).skip(1).for_each(|slot| area.release(slot));
        assert_eq!(area.fills(), Fills { opened: opened(&[(0, 1), (1, 1), (4, 1), (8, 1)]), never: 0 });
    }
}
