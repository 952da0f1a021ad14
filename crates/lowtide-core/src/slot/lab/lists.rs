//! The lists of a [`super::Rival`]: of full clusters, and by order of those that may have room and
//! of those where an allocation was the latest change (in buckets).

use crate::slot::cluster::{ListState, ORDERS};
use crate::slot::lists::{ListId, UNUSED};

/// Beside those of clusters without a used slot.
pub(in crate::slot) const LISTS: usize = 1 + ORDERS + ORDERS * ListId::BUCKETS;

const NONFULL: usize = UNUSED + 1;
const FRAG: usize = NONFULL + ORDERS;

impl ListId {
    pub(in crate::slot) const FULL: ListId = ListId(UNUSED as u8);
    /// Frag lists per order, at most.
    pub(in crate::slot) const BUCKETS: usize = ORDERS;

    /// May have room.
    pub(in crate::slot) const fn nonfull(order: u32) -> ListId {
        ListId((NONFULL + order as usize) as u8)
    }

    /// In one of the rival's buckets.
    pub(in crate::slot) const fn frag(order: u32, bucket: usize) -> ListId {
        ListId((FRAG + order as usize * ListId::BUCKETS + bucket) as u8)
    }
}

/// Of a cluster on one of a rival's lists.
pub(in crate::slot) fn state_on(list: ListId) -> ListState {
    if list == ListId::FULL { ListState::Full } else { ListState::Frag }
}
