//! The compressed pool: objects of up to a page, packed into spans of frames.
//!
//! Objects of any lengths share a span (`span.rs`): there are no size classes, whose half-filled spans and roundings are most
//! of what a pool of small or middling size would waste. A new object goes into the gap that it fits best, of all spans of the
//! shard. That alone keeps a big pool dense whose objects are of many lengths. Where they are nearly alike most gaps are just
//! too short; so while more than a 40th of the pool is free (`insert.rs`), gaps of the emptiest span are joined rather than a
//! span added. Spans belong to shards, each with a lock that protects its shelves (`shelf.rs`) and the memory of all its spans.
//! A byte per frame says of which shard the span is that begins there; it changes under that shard's lock only. Objects are
//! copied in and out under the lock, so that a handle whose object was freed meanwhile is an error or somebody else's bytes,
//! never a bad access. Small pools use one shard, because each shard has a span that is being filled.
//!
//! What does not compress to [`MAX_COMPRESSED`] is kept raw, in a frame of its own without a header.

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

/// Frames of the arena beyond what the limit can use and the lists can keep: room so that a full pool's buddy is not fragmented.
const SLACK: usize = 256;
/// Most shards.
const SHARDS: usize = 8;
/// A pool uses one more shard for each of these.
const SHARD_BYTES: usize = 8 << 20;
/// Bytes of a span, unless the limit leaves fewer.
const SPAN_BYTES: usize = MAX_FRAMES * PAGE_SIZE;
/// The byte of a frame that is a raw page.
const RAW: u8 = 0x7f;
/// The bit of a frame's byte that says that the span that begins there is isolated (`compact.rs`).
const EMPTYING: u8 = 0x80;

type Shard<'a> = Guard<'a, Shelves, { rank::POOL_SHARD }>;

/// The handle names no object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale;

/// The lists of free frames hold at most this part of the limit, between 1 and 64 MiB; less in a pool that holds little
/// (`at_hand.rs`).
const LISTS_PART: usize = 64;

/// The pool. All methods are thread-safe.
#[derive(Debug)]
pub struct Pool {
    frames: Frames,
    /// Per frame: 1 + the shard of the span that begins there, maybe with [`EMPTYING`]; [`RAW`]; or 0.
    begins: Array<AtomicU8>,
    /// The shard of a raw page is the frame's number modulo [`SHARDS`].
    shards: [CacheAligned<Lock<Shelves, { rank::POOL_SHARD }>>; SHARDS],
    limit: Limit,
    /// Objects that were ever given a shard; wraps.
    inserted: AtomicUsize,
    stored: AtomicUsize,
    objects: AtomicUsize,
}

impl Pool {
    /// A pool of at most `limit` bytes of frames now, and `most` bytes ever, that once full accepts again below
    /// `accept_percent` of its limit.
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
                // Address space may be scarce (ulimit -v, strict overcommit): then the limit cannot be raised as far.
                Err(_) if count > least => count = (count / 2).max(least),
                Err(errno) => return Err(errno),
            }
        };
        Pool::of(frames, limit, accept_percent)
    }

    /// A pool of these frames.
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

    /// Forked children have no copy of what is in it: for a process whose children never use it.
    ///
    /// # Errors
    /// `NOMEM` when the kernel refuses: they get a copy.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        self.frames.keep_from_children()
    }

    /// Whether the pool takes objects now. Ask before compressing; [`Pool::insert`] does not ask.
    pub fn accepts(&self) -> bool {
        self.limit.accepts()
    }

    /// Whether more than three fifths of what it could have are taken.
    pub fn is_mostly_taken(&self) -> bool {
        self.limit.is_mostly_taken()
    }

    /// Whether half of the limit is left.
    pub fn has_room(&self) -> bool {
        self.limit.has_room()
    }

    /// Whether the limit leaves room for another span.
    pub fn has_room_for_span(&self) -> bool {
        self.limit.left() > 0
    }

    /// Bytes of objects that should leave now, so that the pool seldom gets full.
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
    /// If the handle names no object, or one longer than `into`. An object that was moved is not found at its old place, and a
    /// handle whose place was given to another object meanwhile may yield bytes of that one: a thread that reads while others
    /// free or compact must check afterwards whether the handle still counts.
    pub fn read(&self, handle: Handle, into: &mut [u8]) -> Result<usize, Stale> {
        let len = handle.object_len();
        let into = into.get_mut(..len).ok_or(Stale)?;
        let (raw, shelves) = self.locate(handle)?;
        if raw {
            // SAFETY: the frame is a raw page, and stays one while the lock of its shard is held; nobody writes to it.
            let page = unsafe { core::slice::from_raw_parts(self.frames.ptr(FrameNo(handle.frame())), PAGE_SIZE) };
            into.copy_from_slice(&page[..len]);
        } else {
            let mut span = self.span(handle.frame(), &shelves);
            let object = span.object(handle.place()).ok_or(Stale)?;
            into.copy_from_slice(span.bytes(object));
        }
        Ok(len)
    }

    /// Frees an object; the frames of a span that is then empty go back at once.
    ///
    /// # Errors
    /// If the handle names no object; nothing changes then.
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
        // Whoever isolated the span looks after it.
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

    /// Looks an object up: whether it is a raw page, and its shard, locked.
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
        // Only now does the byte hold still, and only now may the span's memory be looked at.
        let exists = begins.load(Ordering::Relaxed) & !EMPTYING == byte
            && if byte == RAW {
                handle.place() == 0 && len > MAX_COMPRESSED
            } else {
                self.span(frame, &shelves).object(handle.place()).is_some_and(|o| o.len() == len)
            };
        if exists { Ok((byte == RAW, shelves)) } else { Err(Stale) }
    }

    /// The span at `frame`, one of the shard whose lock is held; the caller drops it before the lock.
    fn span(&self, frame: u32, _shelves: &Shard<'_>) -> Span {
        // SAFETY: callers take `frame` from the shelves or check its byte, under the lock of the shard.
        unsafe { Span::new(self.frames.ptr(FrameNo(frame))) }
    }

    /// Gives an empty span back that is on no shelf.
    fn give_back(&self, shelves: Shard<'_>, frame: u32) {
        let n = self.span(frame, &shelves).frames();
        self.begins[frame as usize].store(0, Ordering::Relaxed);
        drop(shelves);
        self.free_frames(frame, n);
    }

    /// Consecutive frames, if the limit allows.
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

    /// How many shards new objects go to.
    fn active(&self) -> usize {
        (self.bytes() / SHARD_BYTES + 1).min(SHARDS)
    }

    /// Bytes of frames that no object takes.
    fn free(&self) -> usize {
        self.bytes().saturating_sub(self.limit.held.load(Ordering::Relaxed))
    }

    /// Bytes of frames held. Exact when no other call is in flight.
    pub fn bytes(&self) -> usize {
        self.limit.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of memory behind frames: [`Pool::bytes`], and free frames whose memory was not given back yet. Exact when no other
    /// call is in flight. Only for checks: it adds up over all CPUs of all nodes. What is told to the ledger is the same
    /// ([`Pool::count_in`]).
    #[cfg(any(test, feature = "lab"))]
    pub fn held_bytes(&self) -> usize {
        self.frames.held_bytes()
    }

    /// Addresses of the memory behind frames.
    pub fn addresses(&self) -> core::ops::Range<usize> {
        self.frames.addresses()
    }

    /// Gives the memory of all free frames back to the kernel.
    pub fn drain_frames(&self) {
        self.frames.drain();
    }

    /// Tells `ledger` what memory is behind frames, from now on whenever that changes: those of objects, and free ones whose
    /// memory was not given back yet.
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

    /// Changes the limit, to no more than there are frames. A pool that holds more keeps what it holds.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.set(bytes.min(self.frames.count() * PAGE_SIZE));
    }

    /// Bytes of memory that the pool takes beside the bytes of objects, roundings and free room: tables, and what stands in
    /// front of the objects in spans. For experiments: looks at every frame.
    pub fn table_bytes(&self) -> usize {
        let front = |shard: usize| {
            let shelves = self.shards[shard].lock();
            let begins = |(_, byte): &(usize, &AtomicU8)| byte.load(Ordering::Relaxed) as usize == shard + 1;
            let spans = self.begins.iter().enumerate().filter(begins);
            spans.map(|(frame, _)| self.span(frame as u32, &shelves).front()).sum::<usize>()
        };
        self.begins.populated_bytes() + self.frames.table_bytes() + (0..SHARDS).map(front).sum::<usize>()
    }

    /// Makes the locks usable in a forked child, which has not seen the pool become full.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        self.limit.full_times.store(0, Ordering::Relaxed);
        // SAFETY: the caller answers.
        unsafe {
            self.frames.reset_after_fork();
            for shard in &self.shards {
                shard.reset_after_fork();
            }
        }
    }
}

/// How many free frames with memory the lists keep at most.
fn list_frames(limit: usize) -> usize {
    (limit / PAGE_SIZE / LISTS_PART).clamp(LIST_FRAMES, 64 * LIST_FRAMES)
}

/// How many frames the arena must have, so that none is missing below the limit whatever lies in the lists of so many CPUs.
fn arena_frames(limit: usize, cpus: usize) -> usize {
    (limit / PAGE_SIZE + Frames::most_listed(list_frames(limit), cpus) + SLACK).min(MAX_ARENA)
}

/// Bytes that an object of that length takes in the frames of the pool.
const fn held(len: usize) -> usize {
    if len <= MAX_COMPRESSED { need(len) } else { PAGE_SIZE }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests;

#[cfg(all(test, feature = "shuttle", not(feature = "loom")))]
mod models;
