//! Compaction: the objects of the emptiest spans move into the room that is left in others, and the emptied spans go back.
//!
//! The pool does not know who keeps its handles. (A reference back from each object to the word that says where it is would be
//! a third of what may be spent on a page.) So compaction comes in passes: [`Pool::isolate`] chooses spans, then whoever keeps
//! the handles looks through all of them, which costs little for each object when a good part of the pool is chosen, and calls
//! [`Pool::relocate`] for those of chosen spans ([`Pool::is_isolated`]); [`Pool::let_go`] ends the pass.
//!
//! An object moves while others load and free it. The order is:
//!
//! 1. While a span is isolated, nothing new is put into it, and it is not given back. So the old handle names this object or
//!    none, whatever happens meanwhile: a word that says the old handle in step 3 says it of the bytes that were copied in step
//!    2. (Were the place used again, the same word could come to name other bytes there, and the swap would replace them with
//!    the old ones.)
//! 2. A copy is put into another span. Nobody knows it yet.
//! 3. The holder of the handle swaps the old one for the new one in its word, if the word still says the old one.
//! 4. If it did, the old place is freed: a thread that has read the old handle before finds either the bytes, which are the
//!    same, or nothing, and sees that the word has changed. If it did not, the object was freed or is about to be: the copy is
//!    freed, and nothing has happened.
//!
//! A reader that looks at its word before and after must know that the word did not change twice meanwhile, there and back,
//! with another object in the place in between. An object moves at most once in a pass, so it is enough that no pass began.
//!
//! One lock is held at a time, for one object or for one slide of a span, and none during the swap.

use super::handle::Handle;
use super::{EMPTYING, MAX_COMPRESSED, PAGE_SIZE, Pool, RAW, SHARDS, SPAN_BYTES};
use crate::sync::atomic::Ordering;

/// A pass takes at most one part in this of the pool, or [`LEAST_SPANS`].
const PART: usize = 8;
const LEAST_SPANS: usize = 8;

/// What became of an object that was to be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relocated {
    /// It has its new handle.
    Yes,
    /// It stays: it was freed meanwhile, or its span is not isolated.
    No,
    /// There is no room for it elsewhere.
    NoRoom,
}

impl Pool {
    /// Whether so much of the pool is free room that compaction is worth its while: a tenth, and more than a few spans.
    pub fn is_sparse(&self) -> bool {
        let bytes = self.bytes();
        let free = self.free();
        free > bytes / 10 && free > (self.active() + 2) * SPAN_BYTES
    }

    /// Begins a pass: isolates the emptiest spans, as many as have room elsewhere for their objects; returns how many. To be
    /// called, like the rest of a pass, by one thread at a time.
    pub fn isolate(&self) -> usize {
        let bytes = self.bytes();
        let most = (bytes / PART / SPAN_BYTES).max(LEAST_SPANS);
        // Free room outside of the isolated spans, and what their objects will take of it.
        let mut elsewhere = self.free();
        let mut wanted = 0;
        let mut isolated = 0;
        while isolated < most {
            let emptiest = |shard: usize| Some((self.shards[shard].lock().emptiest(&self.frames)?.0, shard));
            let Some((_, shard)) = (0..SHARDS).filter_map(emptiest).max() else { break };
            let mut shelves = self.shards[shard].lock();
            let Some((_, frame)) = shelves.emptiest(&self.frames) else { break };
            let mut span = self.span(frame, &shelves);
            let (free, size) = (span.free(), span.size());
            elsewhere = elsewhere.saturating_sub(free);
            wanted += size - free;
            // An eighth more, because not every rest is used.
            if wanted + wanted / 8 > elsewhere {
                break;
            }
            shelves.isolate(&self.frames, frame);
            self.begins[frame as usize].fetch_or(EMPTYING, Ordering::Relaxed);
            isolated += 1;
        }
        isolated
    }

    /// Whether the object is to be moved ([`Pool::relocate`]). Takes no lock: whoever asks looks through all handles.
    #[inline]
    pub fn is_isolated(&self, handle: Handle) -> bool {
        self.begins.get(handle.frame() as usize).is_some_and(|byte| byte.load(Ordering::Relaxed) & EMPTYING != 0)
    }

    /// Moves an object out of its isolated span. `swap` gets the new handle and says whether it has replaced the old one where
    /// that was kept; it is called with no lock held.
    pub fn relocate(&self, old: Handle, swap: &mut dyn FnMut(Handle) -> bool) -> Relocated {
        let mut copy = [0; MAX_COMPRESSED];
        let copy = &mut copy[..old.object_len().min(MAX_COMPRESSED)];
        if !self.is_isolated(old) || self.read(old, copy).is_err() {
            return Relocated::No;
        }
        let Some(new) = self.insert_into_room(copy) else { return Relocated::NoRoom };
        // Either way, whoever frees the object from now on frees the other one.
        let (gone, moved) = if swap(new) { (old, Relocated::Yes) } else { (new, Relocated::No) };
        let freed = self.remove(gone);
        debug_assert!(freed.is_ok(), "an object was freed at a place that its holder did not know");
        moved
    }

    /// Keeps a copy of `data`, 1 to [`MAX_COMPRESSED`] bytes, where there is room for it, without a new span.
    pub fn insert_into_room(&self, data: &[u8]) -> Option<Handle> {
        self.insert_into_room_from(0, data)
    }

    /// Ends a pass: spans that are empty now go back, the others are used again.
    pub fn let_go(&self) {
        for shard in 0..SHARDS {
            loop {
                let mut shelves = self.shards[shard].lock();
                let Some(frame) = shelves.pop_isolated(&self.frames) else { break };
                self.begins[frame as usize].fetch_and(!EMPTYING, Ordering::Relaxed);
                let mut span = self.span(frame, &shelves);
                if span.is_empty() {
                    self.give_back(shelves, frame);
                } else {
                    shelves.link(&self.frames, frame);
                }
            }
        }
    }
}

const _: () = assert!(RAW & EMPTYING == 0 && (SHARDS as u8) < RAW && MAX_COMPRESSED < PAGE_SIZE);
