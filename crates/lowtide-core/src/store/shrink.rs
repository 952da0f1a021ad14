//! The shrinker: makes room in the pool by writing pages to the devices where they have their slots.
//!
//! A clock over the clusters of all areas with a device: clusters that were used since the hand last came by (a page was stored
//! there, or loaded from the pool) are passed over once, the others are written whole, each run of neighbouring slots with one I/O.
//!
//! How a page goes, and why nothing is lost. `Pool(object)` becomes `Writing(object)` by compare-and-swap: from then on compaction
//! leaves the object where it is, and the slot is the shrinker's until it says otherwise. A load reads the object as before. A free
//! makes the word `Dropped`, and removes the object, but not the slot, which could be given to another page while the old one is
//! still being written there; the shrinker frees it afterwards. When the page is on the device, `Writing` becomes `Device` by
//! compare-and-swap, and only then the object is removed: a load that was reading it finds that the word has changed, and reads from
//! the device. When the page could not be written, the word becomes `Pool` again and nothing has happened. The object that
//! `Writing` names can't be another one than the one that was read, because the word can't come to say `Writing` again without the
//! shrinker. (Should the object be freed while it is read, then garbage is written to a slot that holds nothing.)

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use arrayvec::ArrayVec;
use rustix::io::Errno;

use super::word::Word;
use super::{Page, Scratch, Store};
use crate::device::{SealRun, Tag};
use crate::pool::Handle;
use crate::slot::{Area, AreaRef, CLUSTER_SLOTS, Visit};
use crate::vm::{self, Mapping, OnFork, PAGE_SIZE};

/// Most runs of slots that are written at the same time.
const RUNS: usize = 32;

/// What [`Store::shrink`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shrunk {
    /// Pages written.
    pub pages: usize,
    /// Bytes of objects that left the pool.
    pub bytes: usize,
    /// A device failed.
    pub failed: bool,
}

/// The clock's hand, and the memory of whoever moves it.
#[derive(Debug)]
pub(super) struct Shrinker {
    /// A thread is at work; it alone uses the rest.
    busy: AtomicBool,
    /// The area where the hand is.
    area: AtomicU8,
    /// The cluster to visit next.
    cluster: AtomicU32,
    /// A [`Batch`]. Takes memory only while it is used.
    batch: Mapping,
}

/// A cluster on its way to the device; by index of the slot in the cluster.
#[repr(C)]
struct Batch {
    pages: [Page; CLUSTER_SLOTS],
    tags: [Tag; CLUSTER_SLOTS],
    /// The raw words of claimed slots; 0 elsewhere.
    claimed: [u64; CLUSTER_SLOTS],
}

impl Shrinker {
    pub(super) fn new() -> Result<Shrinker, Errno> {
        Ok(Shrinker {
            busy: AtomicBool::new(false),
            area: AtomicU8::new(0),
            cluster: AtomicU32::new(0),
            batch: vm::map(size_of::<Batch>(), OnFork::Copy)?,
        })
    }
}

impl Drop for Shrinker {
    fn drop(&mut self) {
        // SAFETY: references into it are made by the store's methods only, which borrow it.
        unsafe { self.batch.retire() }
    }
}

impl Store {
    /// Bytes of objects that [`Store::shrink`] should make leave the pool: 0 between calls while the pool is below its high mark, and
    /// without a device that can be written to now.
    pub fn wants_shrinking(&self) -> usize {
        match self.pool.excess() {
            excess @ 1.. if self.areas.iter().any(|area| takes_writes(&area)) => excess,
            _ => 0,
        }
    }

    /// Writes clusters of pages from the pool to their devices until objects of `bytes` bytes have left, or no page is left that can
    /// be written (those that got their slots from a parent, without a device, or on one that fails can't); all of it or nothing of a
    /// cluster, unless the device fails meanwhile. Loads and frees in progress are not disturbed. Nothing happens while another thread is at it.
    pub fn shrink(&self, bytes: usize, scratch: &mut Scratch) -> Shrunk {
        let mut shrunk = Shrunk::default();
        if bytes == 0 || self.shrinker.busy.swap(true, Ordering::Acquire) {
            return shrunk;
        }
        // SAFETY: the mapping is large and aligned enough, lives as long as the store, and `busy` makes this thread its only user. Any
        // bytes are a Batch.
        let batch = unsafe { &mut *self.shrinker.batch.as_ptr().cast::<Batch>() };
        // Twice round, from where the hand is: the first time may only take marks away.
        let mut rounds = 0;
        while shrunk.bytes < bytes && rounds <= 2 {
            let Some((area, cluster)) = self.next_cluster(&mut rounds) else { break };
            if area.ages.visit(cluster) == Visit::Old {
                self.write_cluster(&area, cluster, batch, scratch, &mut shrunk);
            }
        }
        if self.wants_shrinking() == 0 {
            // SAFETY: as above; the reference is not used any more.
            unsafe { self.shrinker.batch.discard(0, self.shrinker.batch.len()) };
        }
        self.shrinker.busy.store(false, Ordering::Release);
        shrunk
    }

    /// Moves the hand on. `rounds` counts how often it comes round. `None`: there is nothing to visit.
    fn next_cluster(&self, rounds: &mut u32) -> Option<(AreaRef<'_>, usize)> {
        let hand = &self.shrinker;
        for _ in 0..=u16::from(u8::MAX) + 1 {
            let (id, cluster) = (hand.area.load(Ordering::Relaxed), hand.cluster.load(Ordering::Relaxed));
            if let Some(area) = self.areas.get(id)
                && takes_writes(&area)
                && (cluster as usize) < area.opened_clusters()
            {
                hand.cluster.store(cluster + 1, Ordering::Relaxed);
                return Some((area, cluster as usize));
            }
            hand.area.store(id.wrapping_add(1), Ordering::Relaxed);
            hand.cluster.store(0, Ordering::Relaxed);
            *rounds += u32::from(id == u8::MAX);
        }
        None
    }

    /// Writes the pages of a cluster that are in the pool.
    fn write_cluster(&self, area: &AreaRef<'_>, cluster: usize, batch: &mut Batch, scratch: &mut Scratch, shrunk: &mut Shrunk) {
        let first = (cluster * CLUSTER_SLOTS) as u64;
        for ((slot, claimed), page) in (first..).zip(&mut batch.claimed).zip(&mut batch.pages) {
            *claimed = 0;
            let Some(handle) = self.claim(area, slot) else { continue };
            match self.unpack(handle, page, scratch) {
                Ok(true) => *claimed = Word::Writing(handle).encode(),
                // Freed meanwhile; or damaged, which is for a load to find and to say.
                _ => _ = self.finish(area, slot, handle, Word::Pool(handle)),
            }
        }
        let mut at = 0;
        while at < CLUSTER_SLOTS && !area.rests() {
            at = self.write_some(area, cluster, at, batch, shrunk);
        }
        // What was not tried because the device failed stays where it is.
        for (slot, raw) in (first..).zip(&batch.claimed).skip(at) {
            if let Some(handle) = Word::decode(*raw).object() {
                area.ages.left(cluster);
                self.finish(area, slot, handle, Word::Pool(handle));
            }
        }
    }

    /// Writes up to [`RUNS`] runs of claimed pages of a cluster, from index `at` on. Returns where to go on.
    fn write_some(&self, area: &AreaRef<'_>, cluster: usize, mut at: usize, batch: &mut Batch, shrunk: &mut Shrunk) -> usize {
        let first = (cluster * CLUSTER_SLOTS) as u64;
        let mut runs: ArrayVec<SealRun<'_>, RUNS> = ArrayVec::new();
        let (mut pages, mut tags) = (&mut batch.pages[at..], &mut batch.tags[at..]);
        while at < CLUSTER_SLOTS && !runs.is_full() {
            let len = batch.claimed[at..].chunk_by(|a, b| (*a == 0) == (*b == 0)).next().map_or(0, <[_]>::len);
            let (these, other_pages) = pages.split_at_mut(len);
            let (their_tags, other_tags) = tags.split_at_mut(len);
            if batch.claimed[at] != 0 {
                runs.push(SealRun { slot: first + at as u64, pages: these, tags: their_tags, result: Ok(()) });
            }
            (at, pages, tags) = (at + len, other_pages, other_tags);
        }
        area.device.write_in_place(&mut runs);
        for run in runs {
            let claimed = &batch.claimed[(run.slot - first) as usize..];
            area.io.writes.add(1);
            match run.result {
                Ok(()) => {
                    area.io.write_bytes.add((run.pages.len() * PAGE_SIZE) as u64);
                    area.wrote();
                }
                Err(errno) => {
                    area.io.errors.add(1);
                    area.failed(errno);
                    shrunk.failed = true;
                    // Where there was no room there may be later.
                    if matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG) {
                        area.ages.left(cluster);
                    } else if area.ages.broke(cluster) {
                        self.counters.broken_clusters.add(1);
                    }
                }
            }
            for ((slot, raw), tag) in (run.slot..).zip(claimed).zip(&*run.tags) {
                let Some(handle) = Word::decode(*raw).object() else { continue };
                if run.result.is_err() {
                    // It stays where it is.
                    self.finish(area, slot, handle, Word::Pool(handle));
                } else if self.written(area, slot, handle, *tag) {
                    shrunk.pages += 1;
                    shrunk.bytes += handle.object_len();
                }
            }
        }
        at
    }

    /// Claims the slot of a page in the pool for writing: the page's object.
    fn claim(&self, area: &Area, slot: u64) -> Option<Handle> {
        let place = area.word(slot)?;
        loop {
            let raw = place.load(Ordering::Acquire);
            let Word::Pool(handle) = Word::decode(raw) else { return None };
            // Fails when the page is freed, or compaction moves its object.
            let claimed = Word::Writing(handle).encode();
            if place.compare_exchange(raw, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Some(handle);
            }
        }
    }

    /// A claimed page is on the device now. False: it was freed meanwhile.
    fn written(&self, area: &Area, slot: u64, handle: Handle, tag: Tag) -> bool {
        // Counted first: a free, which subtracts, may follow at once.
        area.io.pages.add(1);
        if !self.finish(area, slot, handle, Word::Device(tag)) {
            area.io.pages.sub(1);
            return false;
        }
        let removed = self.pool.remove(handle);
        debug_assert!(removed.is_ok(), "a claimed word named no object");
        self.counters.written_back.add(1);
        true
    }

    /// Lets go of a claimed slot, whose word is `word` from now on; if its page was freed meanwhile, the slot is freed.
    fn finish(&self, area: &Area, slot: u64, handle: Handle, word: Word) -> bool {
        let Some(place) = area.word(slot) else { return false };
        let claimed = Word::Writing(handle).encode();
        if place.compare_exchange(claimed, word.encode(), Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        debug_assert_eq!(Word::decode(place.load(Ordering::Relaxed)), Word::Dropped);
        place.store(Word::Empty.encode(), Ordering::Release);
        area.release(slot);
        false
    }
}

/// Whether pages of the pool can be written to an area now.
fn takes_writes(area: &Area) -> bool {
    area.device.takes_pages() && !area.is_inherited() && !area.rests()
}

#[cfg(test)]
#[path = "shrink_tests.rs"]
mod tests;
