//! The compressed pool: objects of up to a page, packed by size class into spans of frames.
//!
//! Each class has a lock, which protects its list of spans with room and the memory of all its spans. A byte per frame says of
//! which class the span is that begins there; it changes under the lock of that class only. Objects are copied in and out under
//! the lock, so that a handle whose object was freed meanwhile is an error or somebody else's bytes, never a bad access.

mod class;
mod handle;
mod limit;
mod span;

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use rustix::io::Errno;

use crate::frame::{FrameNo, Frames, LIST_FRAMES};
use crate::lock::{Guard, Lock, rank};
use crate::table::Table;
use crate::vm::{OnFork, PAGE_SIZE};
use class::{CLASSES, RAW, TABLE};
use limit::Limit;
use span::Span;

pub use class::MAX_COMPRESSED;
pub use handle::Handle;

/// The handle names no object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale;

/// Frames beyond what the limit and the lists of free frames can use: room, so that a full pool's buddy is not fragmented.
const SLACK: usize = 256;
/// The lists of free frames hold at most this part of the limit, between 1 and 64 MiB.
const LISTS_PART: usize = 64;

/// The pool. All methods are thread-safe.
#[derive(Debug)]
pub struct Pool {
    frames: Frames,
    /// Per frame: 1 + the class of the span that begins there, or 0.
    begins: Table<AtomicU8>,
    classes: [Lock<List, { rank::POOL_CLASS }>; CLASSES],
    limit: Limit,
    stored: AtomicUsize,
    objects: AtomicUsize,
}

/// The spans of a class that have room, newest first.
#[derive(Debug, Default)]
struct List {
    /// First frame of the first span, plus one; 0 is none.
    head: u32,
}

impl Pool {
    /// A pool of at most `limit` bytes of frames now, and `most` bytes ever, that once full accepts again below
    /// `accept_percent` of its limit.
    ///
    /// # Errors
    /// `NOMEM` when its address range cannot be had.
    pub fn new(limit: usize, most: usize, accept_percent: u32) -> Result<Pool, Errno> {
        let lists = (limit / PAGE_SIZE / LISTS_PART).clamp(LIST_FRAMES, 64 * LIST_FRAMES);
        let least = limit / PAGE_SIZE + lists + SLACK;
        let mut count = (most / PAGE_SIZE + lists + SLACK).max(least);
        let frames = loop {
            match Frames::with_list_frames(count, lists) {
                Ok(frames) => break frames,
                // Address space may be scarce (ulimit -v, strict overcommit): then the limit cannot be raised as far.
                Err(_) if count > least => count = (count / 2).max(least),
                Err(errno) => return Err(errno),
            }
        };
        Ok(Pool {
            begins: Table::new(frames.count(), OnFork::Copy)?,
            frames,
            classes: [const { Lock::new(List { head: 0 }) }; CLASSES],
            limit: Limit::new(limit, accept_percent),
            stored: AtomicUsize::new(0),
            objects: AtomicUsize::new(0),
        })
    }

    /// Whether the pool takes objects now. Ask before compressing; [`Pool::insert`] does not ask.
    pub fn accepts(&self) -> bool {
        self.limit.accepts()
    }

    /// Keeps a copy of `data`, 1 to 4096 bytes. `None` when the limit or memory does not allow, or the length is wrong.
    pub fn insert(&self, data: &[u8]) -> Option<Handle> {
        if data.is_empty() || data.len() > PAGE_SIZE {
            return None;
        }
        let class = class::of(data.len());
        let mut list = self.classes[class].lock();
        let (frame, place) = if class == RAW {
            let frame = self.grow(class)?;
            // SAFETY: a page of its own, just handed out, and the lock of the class is held.
            let page = unsafe { core::slice::from_raw_parts_mut(self.frames.ptr(FrameNo(frame)), PAGE_SIZE) };
            page[..data.len()].copy_from_slice(data);
            (frame, 0)
        } else {
            if list.head == 0 {
                let frame = self.grow(class)?;
                self.span(frame, class).clear();
                self.link(&mut list, frame, class);
            }
            let frame = list.head - 1;
            let mut span = self.span(frame, class);
            let place = span.take()?;
            span.bytes(place)[..data.len()].copy_from_slice(data);
            if span.is_full() {
                self.unlink(&mut list, frame, class);
            }
            (frame, place)
        };
        self.limit.held.fetch_add(TABLE[class].size, Ordering::Relaxed);
        self.stored.fetch_add(data.len(), Ordering::Relaxed);
        self.objects.fetch_add(1, Ordering::Relaxed);
        Some(Handle::new(frame, place, data.len()))
    }

    /// Copies an object into the front of `into` and returns its length.
    ///
    /// # Errors
    /// If the handle names no object, or one longer than `into`. A handle whose place was given to another object meanwhile
    /// yields bytes of that one: who reads while others free must check afterwards whether the handle still counts.
    pub fn read(&self, handle: Handle, into: &mut [u8]) -> Result<usize, Stale> {
        let len = handle.object_len();
        let into = into.get_mut(..len).ok_or(Stale)?;
        let (class, _list) = self.locate(handle)?;
        if class == RAW {
            // SAFETY: the page is an object of the raw class, whose lock is held.
            let page = unsafe { core::slice::from_raw_parts(self.frames.ptr(FrameNo(handle.frame())), PAGE_SIZE) };
            into.copy_from_slice(&page[..len]);
        } else {
            into.copy_from_slice(&self.span(handle.frame(), class).bytes(handle.place())[..len]);
        }
        Ok(len)
    }

    /// Frees an object; the frames of a span that is then empty go back at once.
    ///
    /// # Errors
    /// If the handle names no object; nothing changes then.
    pub fn remove(&self, handle: Handle) -> Result<(), Stale> {
        let (class, mut list) = self.locate(handle)?;
        let frame = handle.frame();
        let empty = if class == RAW {
            true
        } else {
            let mut span = self.span(frame, class);
            let was_full = span.is_full();
            span.give(handle.place());
            let empty = span.header().used == 0;
            if was_full && !empty {
                self.link(&mut list, frame, class);
            } else if !was_full && empty {
                self.unlink(&mut list, frame, class);
            }
            empty
        };
        if empty {
            self.begins[frame as usize].store(0, Ordering::Relaxed);
        }
        drop(list);
        self.limit.held.fetch_sub(TABLE[class].size, Ordering::Relaxed);
        self.stored.fetch_sub(handle.object_len(), Ordering::Relaxed);
        self.objects.fetch_sub(1, Ordering::Relaxed);
        if empty {
            let frames = TABLE[class].frames;
            let freed = self.frames.free_run(FrameNo(frame), frames as u32);
            debug_assert!(freed.is_ok(), "a span's frames are handed out");
            self.limit.release(frames);
        }
        Ok(())
    }

    /// The class of an object that exists, with its lock held.
    fn locate(&self, handle: Handle) -> Result<(usize, Guard<'_, List, { rank::POOL_CLASS }>), Stale> {
        let begins = self.begins.get(handle.frame() as usize).ok_or(Stale)?;
        let class = (begins.load(Ordering::Relaxed) as usize).checked_sub(1).ok_or(Stale)?;
        let list = self.classes.get(class).ok_or(Stale)?.lock();
        // Only now does the byte hold still, and only now may the span's memory be looked at.
        let here = begins.load(Ordering::Relaxed) as usize == class + 1 && class == class::of(handle.object_len());
        let holds =
            here && if class == RAW { handle.place() == 0 } else { self.span(handle.frame(), class).holds(handle.place()) };
        if holds { Ok((class, list)) } else { Err(Stale) }
    }

    /// Frames for a new span, if the limit allows. The lock of the class is held.
    fn grow(&self, class: usize) -> Option<u32> {
        let n = TABLE[class].frames;
        if !self.limit.reserve(n) {
            return None;
        }
        let Some(FrameNo(frame)) = self.frames.alloc_run(n as u32) else {
            self.limit.release(n);
            return None;
        };
        self.begins[frame as usize].store(class as u8 + 1, Ordering::Relaxed);
        Some(frame)
    }

    /// The span of `class` at `frame`; the caller holds the lock of the class and drops the span before the lock.
    fn span(&self, frame: u32, class: usize) -> Span {
        // SAFETY: callers take `frame` from the list of the class or from a handle that `locate` checked, under its lock.
        unsafe { Span::new(self.frames.ptr(FrameNo(frame)), &TABLE[class]) }
    }

    fn link(&self, list: &mut List, frame: u32, class: usize) {
        let next = list.head;
        let mut span = self.span(frame, class);
        let header = span.header();
        (header.next, header.prev) = (next, 0);
        if next != 0 {
            self.span(next - 1, class).header().prev = frame + 1;
        }
        list.head = frame + 1;
    }

    fn unlink(&self, list: &mut List, frame: u32, class: usize) {
        let mut span = self.span(frame, class);
        let (next, prev) = (span.header().next, span.header().prev);
        if prev == 0 {
            list.head = next;
        } else {
            self.span(prev - 1, class).header().next = next;
        }
        if next != 0 {
            self.span(next - 1, class).header().prev = prev;
        }
    }

    /// Bytes of frames held. Exact when no other call is in flight.
    pub fn bytes(&self) -> usize {
        self.limit.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of memory behind frames: [`Pool::bytes`], and free frames whose memory was not given back yet. Exact when no other call
    /// is in flight.
    pub fn held_bytes(&self) -> usize {
        self.frames.held_bytes()
    }

    /// Gives the memory of all free frames back to the kernel.
    pub fn drain_frames(&self) {
        self.frames.drain();
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

    /// Changes the limit. A pool that holds more keeps what it holds.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.set(bytes);
    }

    /// Bytes of memory that the pool's own tables take.
    #[cfg(test)]
    pub(crate) fn table_bytes(&self) -> usize {
        self.begins.populated_bytes() + self.frames.table_bytes()
    }

    /// Makes the locks usable in a forked child.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller answers.
        unsafe {
            self.frames.reset_after_fork();
            for class in &self.classes {
                class.reset_after_fork();
            }
        }
    }
}

#[cfg(test)]
mod tests;
