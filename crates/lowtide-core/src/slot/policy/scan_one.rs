//! Try one frag cluster, rotate it to the tail, give up: the kernel's way since "mm, swap: only scan one cluster in fragment
//! list" (Kairui Song, 2025). Fast, and misses runs that exist.

use super::{Search, Trier, by_latest_change};
use crate::slot::cluster::Inner;
use crate::slot::lists::{ListId, Place};

#[derive(Debug)]
pub(in crate::slot) struct ScanOne;

impl Search for ScanOne {
    fn place(&self, inner: &Inner, freed: bool) -> Place {
        by_latest_change(inner, freed)
    }

    fn search(&self, order: u32, _used: u64, _total: u64, trier: &mut dyn Trier) -> Option<u64> {
        let found = trier.try_list(ListId::nonfull(order), usize::MAX).slot;
        found.or_else(|| trier.try_list(ListId::frag(order, 0), 1).slot)
    }
}
