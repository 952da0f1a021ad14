//! Discard: a cluster that becomes free on a device that can is punched out before it is given out again, so that the space
//! goes back to the file system and the area's budget.

use super::area::Area;
use super::cluster::{CLUSTER_SLOTS, ListState};
use super::lists::{ListId, Place};
use crate::percpu::Zone;

impl Area {
    /// Whether clusters wait to be punched out.
    pub fn has_discards(&self) -> bool {
        self.discard && self.places.len(ListId::DISCARD) > 0
    }

    /// Punches out up to `most` of the clusters that wait for it; each can be given out again afterwards, also where the device
    /// refuses. Blocks for I/O, with no lock held. Returns how many were done.
    pub fn discard_some(&self, most: usize) -> usize {
        (0..most).take_while(|_| self.discard_one()).count()
    }

    fn discard_one(&self) -> bool {
        if !self.discard {
            return false;
        }
        let Some((i, mut inner)) = self.places.isolate(&self.clusters, ListId::DISCARD, Zone::ALL) else { return false };
        // On no list, and not usable: nobody else changes it while the device works.
        inner.state = ListState::Discard;
        drop(inner);
        let punched = self.device.discard((i * CLUSTER_SLOTS) as u64, CLUSTER_SLOTS as u64).is_ok();
        let mut inner = self.clusters[i].0.lock();
        if punched && inner.charged {
            self.uncharge(i);
            inner.charged = false;
        }
        self.places.relocate(i, &mut inner, Place::List(ListId::FREE));
        true
    }
}
