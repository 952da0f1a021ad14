//! Reference counts of slots that a process shares with its forked children, and the search for slots that the children have
//! since freed.
//!
//! A count that reaches its maximum is reported, and stays there: the slot is then never freed, which wastes it but cannot give it
//! out twice.

use core::sync::atomic::{AtomicU16, Ordering};

use super::area::Area;
use super::cluster::CLUSTER_SLOTS;
use super::error::SlotError;

/// Most clusters with zombies that one allocation looks through.
const CLUSTERS_PER_SEARCH: usize = 16;
/// Most clusters that it passes by.
const PASSED_PER_SEARCH: usize = 4096;

/// Drops one reference and returns how many are left.
pub(super) fn drop_one(count: &AtomicU16) -> u16 {
    let fewer = |n: u16| if n == u16::MAX { None } else { n.checked_sub(1) };
    // Acquire and release: whoever gives the slot out again does so after everybody's reads.
    match count.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer) {
        Ok(before) => before - 1,
        Err(stuck) => stuck,
    }
}

impl Area {
    /// Adds a reference to a slot in use, on behalf of a child that is about to be forked. No effect on a private area.
    ///
    /// # Errors
    /// `TooManyReferences` when the count has reached its maximum: the slot is safe to use, and stays in use for good.
    pub fn add_reference(&self, slot: u64) -> Result<(), SlotError> {
        let Some(refs) = &self.refs else { return Ok(()) };
        let count = refs.get(slot as usize).ok_or(SlotError::NoSuchSlot)?;
        match count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1)) {
            Ok(before) if before < u16::MAX - 1 => Ok(()),
            _ => Err(SlotError::TooManyReferences),
        }
    }

    /// Takes back what [`Area::add_reference`] added, while the slot is still in use by this process.
    pub fn undo_reference(&self, slot: u64) {
        if let Some(count) = self.refs.as_ref().and_then(|r| r.get(slot as usize)) {
            drop_one(count);
        }
    }

    /// Whether forked children get references to slots of this area.
    pub fn is_shared(&self) -> bool {
        self.refs.is_some()
    }
}

/// Frees zombies that nobody refers to any more, in a few clusters of an area. Whether any was found.
pub(super) fn reap(area: &Area) -> bool {
    let Some(refs) = &area.refs else { return false };
    let opened = area.opened.load(Ordering::Acquire) as usize;
    if area.zombies.load(Ordering::Relaxed) == 0 || opened == 0 {
        return false;
    }
    let start = area.reap_at.load(Ordering::Relaxed) as usize;
    let (mut searched, mut passed, mut found) = (0, 0, 0u64);
    while passed < opened.min(PASSED_PER_SEARCH) && searched < CLUSTERS_PER_SEARCH {
        let i = (start + passed) % opened;
        passed += 1;
        let mut inner = area.clusters[i].0.lock();
        if inner.zombies == 0 {
            continue;
        }
        searched += 1;
        for index in 0..CLUSTER_SLOTS {
            let slot = i * CLUSTER_SLOTS + index;
            // Slots that are never given out have no references either.
            let real = slot != 0 && slot < refs.len();
            if real && inner.is_used(index) && refs[slot].load(Ordering::Acquire) == 0 {
                inner.zombies -= 1;
                area.give(i, &mut inner, index, 1);
                found += 1;
            }
        }
    }
    area.reap_at.store(((start + passed) % opened) as u32, Ordering::Relaxed);
    area.zombies.fetch_sub(found, Ordering::Relaxed);
    found > 0
}
