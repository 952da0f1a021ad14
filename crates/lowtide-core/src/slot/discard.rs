//! Discard: free clusters are punched out before reuse, which returns the space to the file system
//! and the quota.

use super::area::Area;
use super::cluster::{CLUSTER_SLOTS, ListState};
use super::lists::{ListId, Place};
use crate::percpu::Zone;

impl Area {
    /// Whether clusters wait to be punched out.
    pub fn has_discards(&self) -> bool {
        self.clusters().discards() && self.clusters().len(ListId::DISCARD) > 0
    }

    /// Punches out up to `most` waiting clusters, which become reusable even if the device refuses.
    /// Blocks for I/O, with no lock held. Returns the number done.
    pub fn discard_some(&self, most: usize) -> usize {
        (0..most).take_while(|_| self.discard_one()).count()
    }

    fn discard_one(&self) -> bool {
        let clusters = self.clusters();
        if !clusters.discards() {
            return false;
        }
        let Some((i, mut inner)) = clusters.isolate(ListId::DISCARD, Zone::ALL) else { return false };
        // On no list, and not usable: no other thread changes it during the I/O.
        inner.state = ListState::Discard;
        drop(inner);
        let slot = (i * CLUSTER_SLOTS) as u64;
        let punched = self.device.as_ref().is_some_and(|device| device.discard(slot, CLUSTER_SLOTS as u64).is_ok());
        let mut inner = clusters.lock(i);
        if punched && inner.charged {
            clusters.uncharge(i, &mut inner);
        }
        clusters.move_to(i, &mut inner, Place::List(ListId::FREE));
        true
    }
}
