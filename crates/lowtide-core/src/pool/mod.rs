//! The compressed pool: objects of up to a page, packed into spans of frames.
//!
//! Objects of any lengths share a span (`span.rs`): half-filled spans and roundings of size classes
//! would be most of the waste of a small pool. A new object goes into the best-fitting gap of the
//! shard. If lengths are nearly alike, most gaps are just too short; so while more than a 40th of
//! the pool is free (`insert.rs`), gaps of the emptiest span are joined before a span is added.
//!
//! A shard's lock protects its shelves (`shelf.rs`), its spans, and the frames' bytes that name it.
//! Objects are copied under the lock, so a stale handle yields an error or another object's bytes,
//! never a bad access. Small pools use one shard, because each fills its own span.
//!
//! A page that does not compress to [`MAX_COMPRESSED`] is kept raw, in its own frame.

mod at_hand;
mod compact;
mod gaps;
mod handle;
mod insert;
mod shelf;
mod span;
mod validate;

use alloc::sync::Arc;

use rustix::io::Errno;

use crate::frame::{FrameNo, Frames, LIST_FRAMES};
use crate::ledger::Ledger;
use crate::limit::Limit;
use crate::lock::rank;
use crate::percpu::{self, CacheAligned};
use crate::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use crate::sync::{Array, Guard, Lock};
use crate::vm::{OnFork, PAGE_SIZE};
use handle::MAX_ARENA;
use shelf::Shelves;
use span::{MAX_FRAMES, Span, need};

pub use crate::codec::MAX_COMPRESSED;
pub use compact::Relocated;
pub use handle::Handle;
pub use validate::Broken;

/// Extra frames against fragmentation in a full pool.
const SLACK: usize = 256;
const SHARDS: usize = 8;
const SHARD_BYTES: usize = 8 << 20;
const SPAN_BYTES: usize = MAX_FRAMES * PAGE_SIZE;
const RAW: u8 = 0x7f;
/// The bit of a frame's byte for an isolated span (`compact.rs`).
const EMPTYING: u8 = 0x80;

type Shard<'a> = Guard<'a, Shelves, { rank::POOL_SHARD }>;

/// The handle names no object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale;

/// Largest part of the limit in lists of free frames, from 1 to 64 MiB; see `at_hand.rs`.
const LISTS_PART: usize = 64;

/// The pool. All methods are thread-safe.
#[derive(Debug)]
pub struct Pool {
    frames: Frames,
    /// Per frame: 1 + the shard of the span that begins there, maybe with [`EMPTYING`]; [`RAW`]; or
    /// 0.
    begins: Array<AtomicU8>,
    /// A raw page's shard is its frame number modulo [`SHARDS`].
    shards: [CacheAligned<Lock<Shelves, { rank::POOL_SHARD }>>; SHARDS],
    limit: Limit,
    inserted: AtomicUsize,
    stored: AtomicUsize,
    objects: AtomicUsize,
}

impl Pool {
    /// A pool of at most `limit` bytes of frames now and `most` ever. Once full it accepts again
    /// below `accept_percent`.
    ///
    /// # Errors
    /// `NOMEM` when its address range cannot be had.
    pub fn new(limit: usize, most: usize, accept_percent: u32) -> Result<Pool, Errno> {
        let lists = list_frames(limit);
        let least = arena_frames(limit, percpu::count());
        let mut count = (least + (most / PAGE_SIZE).saturating_sub(limit / PAGE_SIZE)).min(MAX_ARENA);
        let frames = loop {
            match Frames::keeping_none(count, lists) {
                Ok(frames) => break frames,
                // Scarce address space lowers the largest possible limit.
                Err(_) if count > least => count = (count / 2).max(least),
                Err(errno) => return Err(errno),
            }
        };
        Pool::of(frames, limit, accept_percent)
    }

    fn of(frames: Frames, limit: usize, accept_percent: u32) -> Result<Pool, Errno> {
        let pool = Pool {
            begins: Array::new(frames.count(), OnFork::Copy)?,
            frames,
            shards: core::array::from_fn(|_| CacheAligned(Lock::new(Shelves::new()))),
            limit: Limit::new(limit, accept_percent),
            inserted: AtomicUsize::new(0),
            stored: AtomicUsize::new(0),
            objects: AtomicUsize::new(0),
        };
        pool.keep_more();
        Ok(pool)
    }

    /// Leaves the pool out of forked children.
    ///
    /// # Errors
    /// `NOMEM` when the kernel refuses: they get a copy.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        self.frames.keep_from_children()
    }

    /// Whether the pool takes objects now; [`Pool::insert`] does not check.
    pub fn accepts(&self) -> bool {
        self.limit.accepts()
    }

    /// Whether more than three fifths of the limit are taken.
    pub fn is_mostly_taken(&self) -> bool {
        self.limit.is_mostly_taken()
    }

    /// Whether half of the limit is left.
    pub fn has_room(&self) -> bool {
        self.limit.has_room()
    }

    /// Whether the limit allows another span.
    pub fn has_room_for_span(&self) -> bool {
        self.limit.left() > 0
    }

    /// Bytes of objects to remove before the pool gets full.
    pub fn excess(&self) -> usize {
        self.limit.excess()
    }

    /// How often the pool became full.
    pub fn full_times(&self) -> u64 {
        self.limit.full_times.load(Ordering::Relaxed)
    }

    /// Copies an object into the front of `into` and returns its length.
    ///
    /// # Errors
    /// The handle names no object, or one longer than `into`. Concurrent frees or compaction may
    /// cause an error or yield another object's bytes: the caller must check that the handle is
    /// current.
    pub fn read(&self, handle: Handle, into: &mut [u8]) -> Result<usize, Stale> {
        let len = handle.object_len();
        let into = into.get_mut(..len).ok_or(Stale)?;
        let (raw, shelves) = self.locate(handle)?;
        if raw {
            // SAFETY: the frame stays an unwritten raw page under its shard's lock.
            let page = unsafe { core::slice::from_raw_parts(self.frames.ptr(FrameNo(handle.frame())), PAGE_SIZE) };
            into.copy_from_slice(&page[..len]);
        } else {
            let mut span = self.span(handle.frame(), &shelves);
            let object = span.object(handle.place()).ok_or(Stale)?;
            into.copy_from_slice(span.bytes(object));
        }
        Ok(len)
    }

    /// Frees an object, and its span's frames if that is empty.
    ///
    /// # Errors
    /// The handle names no object; nothing changes.
    pub fn remove(&self, handle: Handle) -> Result<(), Stale> {
        let (raw, mut shelves) = self.locate(handle)?;
        let (frame, len) = (handle.frame(), handle.object_len());
        self.stored.fetch_sub(len, Ordering::Relaxed);
        self.objects.fetch_sub(1, Ordering::Relaxed);
        self.limit.held.fetch_sub(held(len), Ordering::Relaxed);
        if raw {
            self.begins[frame as usize].store(0, Ordering::Relaxed);
            drop(shelves);
            self.free_frames(frame, 1);
            return Ok(());
        }
        let mut span = self.span(frame, &shelves);
        span.give(handle.place());
        // The thread that isolated the span gives it back.
        if !shelves.is_isolated(&self.frames, frame) {
            if span.is_empty() {
                shelves.unlink(&self.frames, frame);
                self.give_back(shelves, frame);
            } else {
                shelves.reshelve(&self.frames, frame);
            }
        }
        Ok(())
    }

    /// Whether the object is a raw page, and its locked shard.
    fn locate(&self, handle: Handle) -> Result<(bool, Shard<'_>), Stale> {
        let (frame, len) = (handle.frame(), handle.object_len());
        let begins = self.begins.get(frame as usize).ok_or(Stale)?;
        let byte = begins.load(Ordering::Relaxed) & !EMPTYING;
        let shard = match byte {
            0 => return Err(Stale),
            RAW => frame as usize % SHARDS,
            byte => byte as usize - 1,
        };
        let shelves = self.shards[shard].lock();
        // The lock makes the byte stable and the span readable.
        let exists = begins.load(Ordering::Relaxed) & !EMPTYING == byte
            && if byte == RAW {
                handle.place() == 0 && len > MAX_COMPRESSED
            } else {
                self.span(frame, &shelves).object(handle.place()).is_some_and(|o| o.len() == len)
            };
        if exists { Ok((byte == RAW, shelves)) } else { Err(Stale) }
    }

    /// The caller drops it before the lock.
    fn span(&self, frame: u32, _shelves: &Shard<'_>) -> Span {
        // SAFETY: callers take `frame` from the shelves or check its byte, under the shard's lock.
        unsafe { Span::new(self.frames.ptr(FrameNo(frame))) }
    }

    fn give_back(&self, shelves: Shard<'_>, frame: u32) {
        let n = self.span(frame, &shelves).frames();
        self.begins[frame as usize].store(0, Ordering::Relaxed);
        drop(shelves);
        self.free_frames(frame, n);
    }

    fn frames_for(&self, n: usize) -> Option<u32> {
        if !self.limit.reserve(n) {
            return None;
        }
        let Some(FrameNo(frame)) = self.frames.alloc_run(n as u32) else {
            self.limit.release(n);
            return None;
        };
        self.keep_more();
        Some(frame)
    }

    fn free_frames(&self, frame: u32, n: usize) {
        let freed = self.frames.free_run(FrameNo(frame), n as u32);
        debug_assert!(freed.is_ok(), "frames of the pool are handed out");
        self.limit.release(n);
        self.keep_less();
    }

    fn count(&self, len: usize) {
        self.limit.held.fetch_add(held(len), Ordering::Relaxed);
        self.stored.fetch_add(len, Ordering::Relaxed);
        self.objects.fetch_add(1, Ordering::Relaxed);
    }

    fn active(&self) -> usize {
        (self.bytes() / SHARD_BYTES + 1).min(SHARDS)
    }

    fn free(&self) -> usize {
        self.bytes().saturating_sub(self.limit.held.load(Ordering::Relaxed))
    }

    /// Bytes of frames held. Exact when no other call is in flight.
    pub fn bytes(&self) -> usize {
        self.limit.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of memory behind frames, free ones included, as in [`Pool::count_in`]. Exact when no
    /// other call is in flight. Slow.
    #[cfg(any(test, feature = "lab"))]
    pub fn held_bytes(&self) -> usize {
        self.frames.held_bytes()
    }

    /// Addresses of the memory behind frames.
    pub fn addresses(&self) -> core::ops::Range<usize> {
        self.frames.addresses()
    }

    /// Gives the memory of free frames back to the kernel.
    pub fn drain_frames(&self) {
        self.frames.drain();
    }

    /// Reports memory behind frames, free ones included, to `ledger` from now on.
    pub fn count_in(&mut self, ledger: &Arc<dyn Ledger>) {
        self.frames.count_in(ledger);
    }

    /// Bytes of the objects held.
    pub fn stored_bytes(&self) -> usize {
        self.stored.load(Ordering::Relaxed)
    }

    /// Objects held.
    pub fn objects(&self) -> usize {
        self.objects.load(Ordering::Relaxed)
    }

    /// Most bytes of frames that the pool may hold.
    pub fn limit(&self) -> usize {
        self.limit.get()
    }

    /// Changes the limit, up to the number of frames. The pool keeps its content.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.set(bytes.min(self.frames.count() * PAGE_SIZE));
    }

    /// Bytes of tables, headers and directories. Slow: reads every frame.
    pub fn table_bytes(&self) -> usize {
        let front = |shard: usize| {
            let shelves = self.shards[shard].lock();
            let begins = |(_, byte): &(usize, &AtomicU8)| byte.load(Ordering::Relaxed) as usize == shard + 1;
            let spans = self.begins.iter().enumerate().filter(begins);
            spans.map(|(frame, _)| self.span(frame as u32, &shelves).front()).sum::<usize>()
        };
        self.begins.populated_bytes() + self.frames.table_bytes() + (0..SHARDS).map(front).sum::<usize>()
    }

    /// Frees the locks in a forked child and clears [`Pool::full_times`].
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        self.limit.full_times.store(0, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe {
            self.frames.reset_after_fork();
            for shard in &self.shards {
                shard.reset_after_fork();
            }
        }
    }
}

fn list_frames(limit: usize) -> usize {
    (limit / PAGE_SIZE / LISTS_PART).clamp(LIST_FRAMES, 64 * LIST_FRAMES)
}

/// Enough to reach the limit while all CPUs' lists are full.
fn arena_frames(limit: usize, cpus: usize) -> usize {
    (limit / PAGE_SIZE + Frames::most_listed(list_frames(limit), cpus) + SLACK).min(MAX_ARENA)
}

const fn held(len: usize) -> usize {
    if len <= MAX_COMPRESSED { need(len) } else { PAGE_SIZE }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests;

#[cfg(all(test, feature = "shuttle", not(feature = "loom")))]
mod models;
