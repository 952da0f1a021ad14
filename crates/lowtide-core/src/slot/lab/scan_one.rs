//! Tries one frag cluster, rotates it to the tail, gives up: the kernel's way since "mm, swap: only
//! scan one cluster in fragment list" (Kairui Song, 2025). Fast, but misses existing runs.

use super::search_lists::Trial;
use super::{Rival, by_latest_change};
use crate::slot::cluster::Inner;
use crate::slot::lists::ListId;

#[derive(Debug)]
pub(super) struct ScanOne;

impl Rival for ScanOne {
    fn list_of(&self, inner: &Inner) -> ListId {
        by_latest_change(inner)
    }

    fn search(&self, order: u32, _used: u64, _total: u64, trial: &mut Trial<'_, '_>) -> Option<u64> {
        let found = trial.try_list(ListId::nonfull(order), usize::MAX).slot;
        found.or_else(|| trial.try_list(ListId::frag(order, 0), 1).slot)
    }
}
