//! Zombies: slots that their owner has freed, and that forked descendants still refer to. They are used until the owner finds
//! that nobody does any more, and give their place up then.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use super::area::Area;
use super::bitmap::{Bitmap, WORDS};
use super::cluster::CLUSTER_SLOTS;
use super::lists::LockedInner;
use crate::table::Table;
use crate::vm::OnFork;

/// Which slots of an area are zombies: a bit for each. The bits of a cluster belong to its lock's holder, like its count of
/// them.
#[derive(Debug)]
pub(super) struct Zombies {
    words: Table<AtomicU64>,
    /// How many there are.
    count: AtomicU64,
    /// Where the next search begins.
    at: AtomicU32,
}

/// How far one search goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// Most clusters with zombies that are looked through.
    pub searched: usize,
    /// Most clusters that are passed by.
    pub passed: usize,
}

impl Reach {
    /// The reach of an allocation.
    pub(super) const SHORT: Reach = Reach { searched: 16, passed: 4096 };
    /// The reach of a background worker.
    pub(super) const LONG: Reach = Reach { searched: 4096, passed: 1 << 16 };
}

impl Zombies {
    pub(super) fn new(clusters: usize) -> Result<Zombies, Errno> {
        let words = Table::new(clusters * WORDS, OnFork::Copy)?;
        Ok(Zombies { words, count: AtomicU64::new(0), at: AtomicU32::new(0) })
    }

    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// The zombies of cluster `i`, whose lock the caller holds.
    pub(super) fn of(&self, i: usize) -> Bitmap {
        Bitmap::from_words(|w| self.words[i * WORDS + w].load(Ordering::Relaxed))
    }

    /// A used slot of a locked cluster becomes one.
    pub(super) fn add(&self, inner: &mut LockedInner<'_>, slot: usize) {
        let before = self.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::Relaxed);
        debug_assert_eq!(before >> (slot % 64) & 1, 0, "slot {slot} was freed twice");
        inner.zombies += 1;
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// A slot of a locked cluster is one no more.
    fn remove(&self, inner: &mut LockedInner<'_>, slot: usize) {
        self.words[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::Relaxed);
        inner.zombies -= 1;
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.words.populated_bytes()
    }
}

/// Frees zombies that nobody refers to any more, in some clusters of an area. Whether any was found.
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
