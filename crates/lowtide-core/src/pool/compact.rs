//! Compaction: the objects of the emptiest spans move into the room that is left in others, and the emptied spans go back.
//!
//! An object moves while others load and free it. Its owner holds the one word that says where it is, and the order is:
//!
//! 1. The span is isolated: it is on no shelf, so nothing new is put into it, and it is not given back, until it is let go. So the
//!    old handle names this object or none, whatever happens meanwhile: a word that says the old handle in step 3 says it of the
//!    bytes that were copied in step 2. (Were the place used again, the same word could come to name other bytes there, and the swap
//!    would replace them with the old ones.)
//! 2. A copy is put into another span. Nobody knows it yet.
//! 3. The owner swaps the old handle for the new one in its word, if the word still says the old one.
//! 4. If it did, the old place is freed: who has read the old handle before finds either the bytes, which are the same, or nothing,
//!    and sees that the word has changed. If it did not, the object was freed or is about to be, or nobody has been told its handle
//!    yet: the copy is freed, and nothing has happened.
//!
//! One lock is held at a time, for one object or for one slide of a span, and none while the owner is asked.

use core::sync::atomic::Ordering;

use super::handle::{Handle, Owner};
use super::shelf::{Effort, ISOLATED};
use super::span::need;
use super::{MAX_COMPRESSED, Pool, SHARDS};

/// The owner of an object is asked to swap handles: the old one, the new one; `false` when its word does not say the old one.
pub type Swap<'a> = &'a mut dyn FnMut(Owner, Handle, Handle) -> bool;

impl Pool {
    /// Whether so much of the pool is free room that compaction is worth its while: an eighth, and more than a span for each shard
    /// in use.
    pub fn is_sparse(&self) -> bool {
        let (bytes, held) = (self.bytes(), self.limit.held.load(Ordering::Relaxed));
        let free = bytes.saturating_sub(held);
        free > bytes / 8 && free > (self.active() + 1) * super::SPAN_BYTES
    }

    /// Moves objects until about `budget` of them were moved or nothing is gained any more; returns how many were. Objects without an
    /// owner stay. Any thread may call it at any time; `swap` is called with no lock held.
    pub fn compact(&self, budget: usize, swap: Swap<'_>) -> usize {
        let mut moved = 0;
        while moved < budget {
            let Some((shard, frame)) = self.isolate_emptiest() else { break };
            self.empty(shard, frame, swap, &mut moved);
            // A span that could not be emptied would be the emptiest again.
            if !self.let_go(shard, frame) {
                break;
            }
        }
        moved
    }

    /// Isolates the emptiest span, if the room in others is enough for its objects.
    pub(super) fn isolate_emptiest(&self) -> Option<(usize, u32)> {
        let emptiest = |shard: usize| Some((self.shards[shard].lock().emptiest(&self.frames)?.0, shard));
        let (_, shard) = (0..SHARDS).filter_map(emptiest).max()?;
        let mut shelves = self.shards[shard].lock();
        let (_, frame) = shelves.emptiest(&self.frames)?;
        let mut span = self.span(frame, &shelves);
        let (free, size) = (span.free(), span.size());
        let elsewhere = self.bytes().saturating_sub(self.limit.held.load(Ordering::Relaxed) + free);
        let used = size - free;
        if elsewhere < used + used / 8 {
            return None;
        }
        shelves.unlink(&self.frames, frame);
        Some((shard, frame))
    }

    /// Moves objects out of an isolated span, until none is left that can be moved or there is no more room elsewhere.
    fn empty(&self, shard: usize, frame: u32, swap: Swap<'_>, moved: &mut usize) {
        let mut copy = [0; MAX_COMPRESSED];
        let mut place = 0;
        while let Some((at, owner, len)) = self.copy_next(shard, frame, place, &mut copy) {
            let Some(new) = self.put_copy(shard, &copy[..len], owner) else { return };
            let old = Handle::new(frame, at, len);
            if swap(owner, old, new) {
                // Whoever frees the object from now on frees the new place.
                let freed = self.remove(old);
                debug_assert!(freed.is_ok(), "an object that moved was freed at its old place");
                *moved += 1;
            } else {
                let freed = self.remove(new);
                debug_assert!(freed.is_ok(), "a copy that nobody knew was freed");
            }
            place = at + 1;
        }
    }

    /// Copies the first object with an owner from `place` on out of a span; returns its place, owner and length.
    pub(super) fn copy_next(&self, shard: usize, frame: u32, place: usize, copy: &mut [u8]) -> Option<(usize, Owner, usize)> {
        let shelves = self.shards[shard].lock();
        let mut span = self.span(frame, &shelves);
        let (at, owner, object) = (place..span.places()).find_map(|at| {
            let object = span.object(at)?;
            Some((at, object.owner()?, object))
        })?;
        copy[..object.len()].copy_from_slice(span.bytes(object));
        Some((at, owner, object.len()))
    }

    /// Puts a copy where there is room, in the same shard if possible.
    pub(super) fn put_copy(&self, shard: usize, data: &[u8], owner: Owner) -> Option<Handle> {
        (0..SHARDS).find_map(|i| {
            let shard = (shard + i) % SHARDS;
            let mut shelves = self.shards[shard].lock();
            let frame = shelves.find(&self.frames, need(data.len()), Effort::All)?;
            Some(self.put(&mut shelves, frame, data, Some(owner)))
        })
    }

    /// Ends the isolation of a span: it goes back if it is empty now; `false` if it is not.
    pub(super) fn let_go(&self, shard: usize, frame: u32) -> bool {
        let mut shelves = self.shards[shard].lock();
        let mut span = self.span(frame, &shelves);
        debug_assert_eq!(span.header().shelf, ISOLATED);
        if span.live() == 0 {
            self.give_back(shelves, frame);
            return true;
        }
        span.slide();
        shelves.link(&self.frames, frame);
        false
    }
}
