//! Zombies: slots that their owner has freed but forked descendants still refer to. They stay used
//! until the owner finds no more references.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use super::area::Area;
use super::bitmap::{Bitmap, WORDS};
use super::cluster::CLUSTER_SLOTS;
use super::lists::LockedInner;
use crate::table::Table;
use crate::vm::OnFork;

/// A bit each; like the cluster's count, guarded by its lock.
#[derive(Debug)]
pub(super) struct Zombies {
    words: Table<AtomicU64>,
    count: AtomicU64,
    at: AtomicU32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// Most clusters with zombies searched.
    pub searched: usize,
    /// Most clusters passed.
    pub passed: usize,
}

impl Reach {
    /// Of an allocation.
    pub(super) const SHORT: Reach = Reach { searched: 16, passed: 4096 };
    /// Of a background worker.
    pub(super) const LONG: Reach = Reach { searched: 4096, passed: 1 << 16 };
}

impl Zombies {
    pub(super) fn new(clusters: usize) -> Result<Zombies, Errno> {
        let words = Table::new(clusters * WORDS, OnFork::Copy)?;
        Ok(Zombies { words, count: AtomicU64::new(0), at: AtomicU32::new(0) })
    }

    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// The cluster's lock is held.
    pub(super) fn of(&self, i: usize) -> Bitmap {
        Bitmap::from_words(|w| self.words[i * WORDS + w].load(Ordering::Relaxed))
    }

    pub(super) fn add(&self, inner: &mut LockedInner<'_>, slot: usize) {
        let before = self.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::Relaxed);
        debug_assert_eq!(before >> (slot % 64) & 1, 0, "slot {slot} was freed twice");
        inner.zombies += 1;
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self, inner: &mut LockedInner<'_>, slot: usize) {
        self.words[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::Relaxed);
        inner.zombies -= 1;
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.words.populated_bytes()
    }
}

/// Frees zombies without references. Whether it freed any.
pub(super) fn reap(area: &Area, reach: Reach) -> bool {
    let Some(sharing) = area.sharing() else { return false };
    let (zombies, opened) = (&sharing.zombies, area.opened_clusters());
    if !zombies.any() || opened == 0 || area.is_inherited() {
        return false;
    }
    let start = zombies.at.load(Ordering::Relaxed) as usize;
    let (mut searched, mut passed, mut found) = (0, 0, false);
    while passed < opened.min(reach.passed) && searched < reach.searched {
        let i = (start + passed) % opened;
        passed += 1;
        let mut inner = area.clusters().lock(i);
        if inner.zombies == 0 {
            continue;
        }
        searched += 1;
        let dead = zombies.of(i).without(&sharing.held(i, 0, CLUSTER_SLOTS));
        for index in (0..CLUSTER_SLOTS).filter(|index| dead.is_set(*index)) {
            zombies.remove(&mut inner, i * CLUSTER_SLOTS + index);
            area.give(i, &mut inner, index, 1);
            found = true;
        }
    }
    zombies.at.store(((start + passed) % opened) as u32, Ordering::Relaxed);
    found
}
