//! The shrinker: makes room in the pool by writing pages to the devices where they have their slots.
//!
//! A clock over the clusters of all areas with a device: clusters that were used since the hand last came by (a page was stored
//! there, or loaded from the pool) are passed over once, the others are written, each run of neighbouring slots with one I/O.
//! What is not worth a write (`worth.rs`) stays, unless nothing else is left.
//!
//! How a page goes, and why nothing is lost, is in `claim.rs`.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use rustix::io::Errno;

use super::table_word::{Object, Word};
use super::tier::ENOUGH;
use super::worth::Worth;
use super::write_out::{ended, is_passing};
use super::{Page, Scratch, Store, claim};
use crate::device::{SealRun, Tag};
use crate::ledger::{Ledger, Uncounted};
use crate::slot::{Area, AreaRef, CLUSTER_SLOTS, Clock, Row, Visit};
use crate::vm::{self, Mapping, OnFork, PAGE_SIZE};

/// Most runs of slots that are written at the same time.
const RUNS: usize = 32;

/// How often the clock's hand may come round in one call before the last time.
const LAST_ROUND: u32 = 3;

/// Bytes of memory that are kept when there is nothing to write.
const KEPT: usize = HEAD + ENOUGH * PAGE_SIZE;

/// A cluster is unpacked in parts that are no larger than this part of what the pool may hold: where many processes share a small
/// limit, the memory for whole clusters in each would be more than leaves their pools.
const PART: usize = 8;

/// Pages of a cluster that are unpacked and written at a time, where the pool may hold so many bytes.
fn at_a_time(pool_limit: usize) -> usize {
    (pool_limit / PAGE_SIZE / PART).next_multiple_of(COUNTED_AT_ONCE).clamp(COUNTED_AT_ONCE, CLUSTER_SLOTS)
}

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
    /// All that is worth a write has gone, or can't be written: what is worth none goes until there is some again.
    nothing_worth: AtomicBool,
    /// A [`Batch`]. Takes memory only while it is used.
    batch: Mapping,
    /// Bytes of memory behind it, of which `ledger` is told.
    held: AtomicUsize,
    ledger: Arc<dyn Ledger>,
}

/// Pages that are unpacked, or whose memory is given back, between two looks at how much memory that takes: as many as one
/// word of `Batch::touched` tells of.
const COUNTED_AT_ONCE: usize = 64;
const _: () = assert!(ENOUGH.is_multiple_of(COUNTED_AT_ONCE) && CLUSTER_SLOTS.is_multiple_of(COUNTED_AT_ONCE));

/// A cluster, or part of one, on its way to the device, slot by slot.
#[repr(C)]
struct Batch {
    tags: [Tag; CLUSTER_SLOTS],
    /// The raw words of claimed slots; 0 elsewhere.
    claimed: [u64; CLUSTER_SLOTS],
    /// A bit for each of `pages` that has memory. (As many words as make a page: `pages` are page-aligned.)
    touched: [u64; CLUSTER_SLOTS],
    pages: [Page; CLUSTER_SLOTS],
}

/// Bytes of a [`Batch`] before its pages.
const HEAD: usize = size_of::<Batch>() - size_of::<[Page; CLUSTER_SLOTS]>();
const _: () = assert!(HEAD.is_multiple_of(PAGE_SIZE));

impl Shrinker {
    pub(super) fn new() -> Result<Shrinker, Errno> {
        Ok(Shrinker {
            busy: AtomicBool::new(false),
            area: AtomicU8::new(0),
            cluster: AtomicU32::new(0),
            nothing_worth: AtomicBool::new(false),
            batch: vm::map(size_of::<Batch>(), OnFork::Copy)?,
            held: AtomicUsize::new(0),
            ledger: Arc::new(Uncounted),
        })
    }

    /// The memory for a batch; `None` while another thread has it.
    fn take(&self) -> Option<Taken<'_>> {
        // Acquire: pairs with the Release with which `Taken` is dropped.
        // Not `then_some`: a value that is not handed out would be dropped, and that lets go of the memory.
        (!self.busy.swap(true, Ordering::Acquire)).then(|| Taken(self))
    }

    /// Tells `ledger` what memory it holds, from now on whenever that changes.
    pub(super) fn count_in(&mut self, ledger: &Arc<dyn Ledger>) {
        ledger.add(self.held_bytes() as isize);
        self.ledger = ledger.clone();
    }

    /// Bytes of memory that it holds.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Where the memory for a batch is.
    pub(super) fn addresses(&self) -> Range<usize> {
        let start = self.batch.as_ptr().addr();
        start..start + self.batch.len()
    }
}

/// The right to use the shrinker's memory, for as long as this lives.
struct Taken<'a>(&'a Shrinker);

impl Taken<'_> {
    fn get(&mut self) -> &mut Batch {
        // SAFETY: the mapping is large and aligned enough, lives as long as the store, and `busy` makes this thread its only
        // user. Any bytes are a Batch.
        unsafe { &mut *self.0.batch.as_ptr().cast::<Batch>() }
    }

    /// Gives the memory back to the kernel, but for what gathered pages take, which come often.
    fn discard(&mut self) {
        for first in (ENOUGH..CLUSTER_SLOTS).step_by(COUNTED_AT_ONCE) {
            let bits = &mut self.get().touched[first / 64];
            if core::mem::take(bits) != 0 {
                // SAFETY: nobody else uses it, and `&mut self` says that there is no reference into it.
                unsafe { self.0.batch.discard(HEAD + first * PAGE_SIZE, COUNTED_AT_ONCE * PAGE_SIZE) };
                self.count();
            }
        }
    }

    /// Counts what memory there is.
    fn count(&mut self) {
        let pages: u32 = self.get().touched.iter().map(|bits| bits.count_ones()).sum();
        let held = HEAD + pages as usize * PAGE_SIZE;
        let before = self.0.held.swap(held, Ordering::Relaxed);
        self.0.ledger.add(held as isize - before as isize);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.count();
        // Release: pairs with the Acquire in `take`.
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Drop for Shrinker {
    fn drop(&mut self) {
        // SAFETY: references into it are made by the store's methods only, which borrow it.
        unsafe { self.batch.retire() }
    }
}

impl Store {
    /// Bytes of objects that [`Store::shrink`] should make leave the pool: 0 between calls while the pool is below its
    /// high mark, and without a device that can be written to now.
    pub fn wants_shrinking(&self) -> usize {
        match self.pool.excess() {
            excess @ 1.. if self.areas.iter().any(|area| area.takes_writes()) => excess,
            _ => 0,
        }
    }

    /// Writes clusters of pages from the pool to their devices until objects of `bytes` bytes have left, or no page is left
    /// that can be written (those that got their slots from a parent, without a device, or on one that fails can't); all of it
    /// or nothing of a cluster, unless the device fails meanwhile. Loads and frees in progress are not disturbed. Nothing
    /// happens while another thread is at it.
    pub fn shrink(&self, bytes: usize, scratch: &mut Scratch) -> Shrunk {
        let mut shrunk = Shrunk::default();
        if bytes == 0 {
            return shrunk;
        }
        let Some(mut batch) = self.shrinker.take() else { return shrunk };
        let worth = Worth::among(self.pool.stored_bytes(), self.pool.objects());
        let part = at_a_time(self.pool.limit());
        // From where the hand is: the first round may only take marks away, the last one takes what is worth no write, too.
        let mut rounds = 0;
        while shrunk.bytes < bytes && rounds <= LAST_ROUND {
            let Some((area, cluster)) = self.next_cluster(&mut rounds) else { break };
            if area.ages.visit(cluster, Clock::Writing) == Visit::Old {
                let slots = slots_of(cluster);
                let lens = lens_of(&area, slots.clone());
                let mut chosen = worth.choose(&lens);
                if chosen.contains(&true) {
                    self.shrinker.nothing_worth.store(false, Ordering::Relaxed);
                } else if rounds == LAST_ROUND || self.shrinker.nothing_worth.load(Ordering::Relaxed) {
                    self.shrinker.nothing_worth.store(true, Ordering::Relaxed);
                    chosen = Worth::ANY.choose(&lens);
                }
                if lens.iter().zip(chosen).any(|(len, chosen)| *len > 0 && !chosen) {
                    // For those that are not written now.
                    area.ages.left(cluster, Clock::Writing);
                }
                for first in (0..CLUSTER_SLOTS).step_by(part) {
                    if first > 0 && area.rests() {
                        area.ages.left(cluster, Clock::Writing);
                        break;
                    }
                    let from = slots.start + first as u64;
                    let these = from..slots.end.min(from + part as u64);
                    self.unpack_slots(&area, these.clone(), &|i, _| chosen[first + i], &mut batch, scratch);
                    self.write_slots(&area, these, batch.get(), &mut shrunk);
                }
            }
        }
        shrunk
    }

    /// Gives memory back that was used to write clusters, if none are to be written now.
    pub(super) fn give_back_batch(&self) {
        if self.shrinker.held_bytes() > KEPT
            && self.wants_shrinking() == 0
            && let Some(mut batch) = self.shrinker.take()
        {
            batch.discard();
        }
    }

    /// Writes the pages of slots of one cluster that are in the pool, as objects that `wanted` says yes to. Nothing happens
    /// while another thread is at it.
    pub(super) fn write_part(
        &self,
        area: &AreaRef<'_>,
        slots: Range<u64>,
        wanted: &dyn Fn(Object) -> bool,
        scratch: &mut Scratch,
    ) {
        let Some(mut batch) = self.shrinker.take() else { return };
        self.unpack_slots(area, slots.clone(), &|_, object| wanted(object), &mut batch, scratch);
        self.write_slots(area, slots, batch.get(), &mut Shrunk::default());
    }

    /// Moves the hand on. `rounds` counts how often it comes round. `None`: there is nothing to visit.
    fn next_cluster(&self, rounds: &mut u32) -> Option<(AreaRef<'_>, usize)> {
        let hand = &self.shrinker;
        for _ in 0..=u16::from(u8::MAX) + 1 {
            let (id, cluster) = (hand.area.load(Ordering::Relaxed), hand.cluster.load(Ordering::Relaxed));
            if let Some(area) = self.areas.get(id)
                && area.takes_writes()
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

    /// Claims the pages of slots of one cluster that are in the pool, as objects that `wanted` says yes to (the first of the
    /// slots is number 0), and unpacks them.
    fn unpack_slots(
        &self,
        area: &AreaRef<'_>,
        slots: Range<u64>,
        wanted: &dyn Fn(usize, Object) -> bool,
        taken: &mut Taken<'_>,
        scratch: &mut Scratch,
    ) {
        taken.get().claimed.fill(0);
        let mut uncounted = 0;
        // Pages that were freed meanwhile, of which a program that unmaps memory leaves rows.
        let mut row = Row::new(&**area);
        // From the front of the memory on, so that short parts use little of it.
        for (i, slot) in slots.enumerate() {
            let Some(object) = claim::take(area, slot, |object| wanted(i, object)) else { continue };
            let batch = taken.get();
            batch.touched[i / 64] |= 1 << (i % 64);
            match self.unpack(object, &mut batch.pages[i], scratch) {
                Ok(true) => batch.claimed[i] = Word::Claimed(object).encode(),
                // Freed meanwhile; or damaged, which is for a load to find and to say.
                _ => _ = claim::finish(&mut row, slot, object, Word::Pool(object)),
            }
            uncounted += 1;
            if uncounted == COUNTED_AT_ONCE {
                uncounted = 0;
                taken.count();
            }
        }
        taken.count();
    }

    /// Writes what [`Store::unpack_slots`] has claimed.
    fn write_slots(&self, area: &AreaRef<'_>, slots: Range<u64>, batch: &mut Batch, shrunk: &mut Shrunk) {
        let (first, n) = (slots.start, (slots.end - slots.start) as usize);
        let mut at = 0;
        while at < n && !area.rests() {
            at = self.write_some(area, first, at, batch, shrunk);
        }
        let mut row = Row::new(&**area);
        // What was not tried because the device failed stays where it is.
        for (slot, raw) in (first..).zip(&batch.claimed).skip(at) {
            if let Some(object) = Word::decode(*raw).object() {
                area.ages.left(slot as usize / CLUSTER_SLOTS, Clock::Writing);
                claim::finish(&mut row, slot, object, Word::Pool(object));
            }
        }
    }

    /// Writes up to [`RUNS`] runs of claimed pages of a cluster, from index `at` of the batch on, which begins with slot
    /// `first`. Returns where to go on.
    fn write_some(&self, area: &AreaRef<'_>, first: u64, mut at: usize, batch: &mut Batch, shrunk: &mut Shrunk) -> usize {
        let cluster = first as usize / CLUSTER_SLOTS;
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
        match &area.device {
            Some(device) => device.write_in_place(&mut runs),
            None => runs.iter_mut().for_each(|run| run.result = Err(Errno::NODEV)),
        }
        // After the write: nobody is to wait for slots that long.
        let mut row = Row::new(&**area);
        for run in runs {
            let claimed = &batch.claimed[(run.slot - first) as usize..];
            area.io.writes.add(1);
            if let Err(errno) = ended(area, run.pages.len(), run.result) {
                shrunk.failed = true;
                // It may be otherwise later.
                if is_passing(errno) {
                    area.ages.left(cluster, Clock::Writing);
                } else if area.ages.broke(cluster) {
                    self.counters.broken_clusters.add(1);
                }
            }
            for ((slot, raw), tag) in (run.slot..).zip(claimed).zip(&*run.tags) {
                let Some(object) = Word::decode(*raw).object() else { continue };
                if run.result.is_err() {
                    // It stays where it is.
                    claim::finish(&mut row, slot, object, Word::Pool(object));
                } else if self.written(&mut row, slot, object, *tag) {
                    shrunk.pages += 1;
                    shrunk.bytes += object.handle.object_len();
                }
            }
        }
        at
    }

    /// A claimed page is on the device now. False: it was freed meanwhile.
    fn written(&self, row: &mut Row<&Area>, slot: u64, object: Object, tag: Tag) -> bool {
        // Counted first: a free, which subtracts, may follow at once.
        row.area().io.pages.add(1);
        if !claim::finish(row, slot, object, Word::Device(tag)) {
            row.area().io.pages.sub(1);
            return false;
        }
        self.let_go(object);
        self.counters.written_back.add(1);
        true
    }
}

/// The slots of a cluster.
fn slots_of(cluster: usize) -> Range<u64> {
    let first = (cluster * CLUSTER_SLOTS) as u64;
    first..first + CLUSTER_SLOTS as u64
}

/// Bytes of the objects in the pool of each slot; 0 where there is none.
fn lens_of(area: &Area, slots: Range<u64>) -> [u16; CLUSTER_SLOTS] {
    let mut lens = [0; CLUSTER_SLOTS];
    for (len, slot) in lens.iter_mut().zip(slots) {
        let word = area.word(slot).map(|word| Word::decode(word.load(Ordering::Relaxed)));
        if let Some(Word::Pool(object)) = word {
            *len = object.handle.object_len() as u16;
        }
    }
    lens
}

#[cfg(test)]
#[path = "shrink_tests.rs"]
mod tests;
