//! The shrinker writes pages from the pool to their slots on devices.
//!
//! A clock over the clusters of all areas with a device passes once over those used since its last
//! visit (by a store or a pool load), and writes the others, with one I/O for each run of slots.
//! Pages not worth a write (`worth.rs`) go last. `claim.rs` explains how a page leaves.

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

const RUNS: usize = 32;

const LAST_ROUND: u32 = 3;

const KEPT: usize = HEAD + ENOUGH * PAGE_SIZE;

/// Largest part of the pool's limit to unpack: with many processes on a small limit, whole clusters
/// would exceed their pools.
const PART: usize = 8;

fn at_a_time(pool_limit: usize) -> usize {
    (pool_limit / PAGE_SIZE / PART).next_multiple_of(COUNTED_AT_ONCE).clamp(COUNTED_AT_ONCE, CLUSTER_SLOTS)
}

/// Results of [`Store::shrink`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shrunk {
    /// Pages written.
    pub pages: usize,
    /// Bytes of objects that left the pool.
    pub bytes: usize,
    /// A device failed.
    pub failed: bool,
}

/// The clock's hand, and its mover's memory.
#[derive(Debug)]
pub(super) struct Shrinker {
    /// A thread uses the rest.
    busy: AtomicBool,
    area: AtomicU8,
    cluster: AtomicU32,
    /// No page worth a write can be written: others go.
    nothing_worth: AtomicBool,
    /// A [`Batch`]. Has memory only in use.
    batch: Mapping,
    /// Bytes of its memory, as reported to `ledger`.
    held: AtomicUsize,
    ledger: Arc<dyn Ledger>,
}

const COUNTED_AT_ONCE: usize = 64;
const _: () = assert!(ENOUGH.is_multiple_of(COUNTED_AT_ONCE) && CLUSTER_SLOTS.is_multiple_of(COUNTED_AT_ONCE));

#[repr(C)]
struct Batch {
    tags: [Tag; CLUSTER_SLOTS],
    claimed: [u64; CLUSTER_SLOTS],
    /// A bit for each of `pages` with memory. (Fills a page, to align `pages`.)
    touched: [u64; CLUSTER_SLOTS],
    pages: [Page; CLUSTER_SLOTS],
}

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

    /// `None` while another thread has it.
    fn take(&self) -> Option<Taken<'_>> {
        // Acquire: pairs with the Release in `Taken::drop`. Not `then_some`, which would drop an
        // unused `Taken`.
        (!self.busy.swap(true, Ordering::Acquire)).then(|| Taken(self))
    }

    pub(super) fn count_in(&mut self, ledger: &Arc<dyn Ledger>) {
        ledger.add(self.held_bytes() as isize);
        self.ledger = ledger.clone();
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn addresses(&self) -> Range<usize> {
        let start = self.batch.as_ptr().addr();
        start..start + self.batch.len()
    }
}

struct Taken<'a>(&'a Shrinker);

impl Taken<'_> {
    fn get(&mut self) -> &mut Batch {
        // SAFETY: large, aligned, mapped as long as the store lives; `busy` makes this thread its
        // only user. Any bytes are a Batch.
        unsafe { &mut *self.0.batch.as_ptr().cast::<Batch>() }
    }

    /// Keeps memory for gathered pages, which come often.
    fn discard(&mut self) {
        for first in (ENOUGH..CLUSTER_SLOTS).step_by(COUNTED_AT_ONCE) {
            let bits = &mut self.get().touched[first / 64];
            if core::mem::take(bits) != 0 {
                // SAFETY: `busy` and `&mut self` rule out other users and references.
                unsafe { self.0.batch.discard(HEAD + first * PAGE_SIZE, COUNTED_AT_ONCE * PAGE_SIZE) };
                self.count();
            }
        }
    }

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
        // SAFETY: references into it borrow the store.
        unsafe { self.batch.retire() }
    }
}

impl Store {
    /// Bytes of objects for [`Store::shrink`] to write: 0 below the pool's high mark, or if no
    /// device takes writes.
    pub fn wants_shrinking(&self) -> usize {
        match self.pool.excess() {
            excess @ 1.. if self.areas.iter().any(|area| area.takes_writes()) => excess,
            _ => 0,
        }
    }

    /// Writes clusters of pages from the pool until objects of `bytes` bytes have left, or no page
    /// is writable (slots from a parent, without a device or on a failing one). A cluster goes
    /// whole, unless the device fails. Loads and frees are not disturbed. Does nothing while
    /// another thread shrinks.
    pub fn shrink(&self, bytes: usize, scratch: &mut Scratch) -> Shrunk {
        let mut shrunk = Shrunk::default();
        if bytes == 0 {
            return shrunk;
        }
        let Some(mut batch) = self.shrinker.take() else { return shrunk };
        let worth = Worth::among(self.pool.stored_bytes(), self.pool.objects());
        let part = at_a_time(self.pool.limit());
        // The first round may only clear marks; the last one takes all pages.
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

    pub(super) fn give_back_batch(&self) {
        if self.shrinker.held_bytes() > KEPT
            && self.wants_shrinking() == 0
            && let Some(mut batch) = self.shrinker.take()
        {
            batch.discard();
        }
    }

    /// Writes pool pages of slots of one cluster, unless another thread shrinks.
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

    /// Counts rounds of the hand. `None`: no cluster.
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

    /// Claims and unpacks pool pages of slots of one cluster, if `wanted` accepts their index.
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
        // Pages freed meanwhile, in rows when a program unmaps memory.
        let mut row = Row::new(&**area);
        // From the front, so that short parts use little memory.
        for (i, slot) in slots.enumerate() {
            let Some(object) = claim::take(area, slot, |object| wanted(i, object)) else { continue };
            let batch = taken.get();
            batch.touched[i / 64] |= 1 << (i % 64);
            match self.unpack(object, &mut batch.pages[i], scratch) {
                Ok(true) => batch.claimed[i] = Word::Claimed(object).encode(),
                // Freed meanwhile; or damaged, which a load will report.
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

    fn write_slots(&self, area: &AreaRef<'_>, slots: Range<u64>, batch: &mut Batch, shrunk: &mut Shrunk) {
        let (first, n) = (slots.start, (slots.end - slots.start) as usize);
        let mut at = 0;
        while at < n && !area.rests() {
            at = self.write_some(area, first, at, batch, shrunk);
        }
        let mut row = Row::new(&**area);
        // The device failed: the rest stays in the pool.
        for (slot, raw) in (first..).zip(&batch.claimed).skip(at) {
            if let Some(object) = Word::decode(*raw).object() {
                area.ages.left(slot as usize / CLUSTER_SLOTS, Clock::Writing);
                claim::finish(&mut row, slot, object, Word::Pool(object));
            }
        }
    }

    /// Writes up to [`RUNS`] runs of claimed pages from index `at` on; index 0 is slot `first`.
    /// Returns the next index.
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
        // After the write: no thread waits for slots that long.
        let mut row = Row::new(&**area);
        for run in runs {
            let claimed = &batch.claimed[(run.slot - first) as usize..];
            area.io.writes.add(1);
            if let Err(errno) = ended(area, run.pages.len(), run.result) {
                shrunk.failed = true;
                // A later write may succeed.
                if is_passing(errno) {
                    area.ages.left(cluster, Clock::Writing);
                } else if area.ages.broke(cluster) {
                    self.counters.broken_clusters.add(1);
                }
            }
            for ((slot, raw), tag) in (run.slot..).zip(claimed).zip(&*run.tags) {
                let Some(object) = Word::decode(*raw).object() else { continue };
                if run.result.is_err() {
                    claim::finish(&mut row, slot, object, Word::Pool(object));
                } else if self.written(&mut row, slot, object, *tag) {
                    shrunk.pages += 1;
                    shrunk.bytes += object.handle.object_len();
                }
            }
        }
        at
    }

    /// False: the page was freed meanwhile.
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

fn slots_of(cluster: usize) -> Range<u64> {
    let first = (cluster * CLUSTER_SLOTS) as u64;
    first..first + CLUSTER_SLOTS as u64
}

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
