//! Compaction moves objects of the emptiest spans into free room in others and gives the emptied
//! spans back.
//!
//! The pool does not know its handles' holders: a back reference per object would take a third of
//! the overhead allowed per page. So compaction works in passes: [`Pool::isolate`] chooses spans;
//! the holder calls [`Pool::relocate`] for handles in those ([`Pool::is_isolated`]);
//! [`Pool::let_go`] ends the pass.
//!
//! While other threads load and free it, an object moves as follows:
//!
//! 1. An isolated span takes no new objects and is not given back, so the old handle names this
//!    object or none. (If its place were reused, the swap could replace another object's handle.)
//! 2. A copy goes into another span.
//! 3. The holder swaps the old handle in its word for the new one, if it is still there.
//! 4. If it was, the old place is freed: a thread with the old handle finds the same bytes or
//!    nothing, and sees that the word has changed. If not, the object was or will be freed, and the
//!    copy is freed.
//!
//! A reader that compares its word before and after must rule out a change there and back. An
//! object moves at most once in a pass, so it is enough that no pass began.
//!
//! A pass holds one lock at a time, for one object or one slide of a span, and none during the
//! swap.

use super::handle::Handle;
use super::{EMPTYING, MAX_COMPRESSED, PAGE_SIZE, Pool, RAW, SHARDS, SPAN_BYTES};
use crate::sync::atomic::Ordering;

/// Largest part of the pool that a pass isolates, above [`LEAST_SPANS`].
const PART: usize = 8;
const LEAST_SPANS: usize = 8;

/// The outcome of moving an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relocated {
    /// Moved: it has a new handle.
    Yes,
    /// It stays: freed meanwhile, or not in an isolated span.
    No,
    /// No other span has room for it.
    NoRoom,
}

impl Pool {
    /// Whether over a tenth of the pool and a few spans are free.
    pub fn is_sparse(&self) -> bool {
        let bytes = self.bytes();
        let free = self.free();
        free > bytes / 10 && free > (self.active() + 2) * SPAN_BYTES
    }

    /// Begins a pass: isolates the emptiest spans that fit elsewhere, and returns their number.
    /// Only one thread may run a pass.
    pub fn isolate(&self) -> usize {
        let bytes = self.bytes();
        let most = (bytes / PART / SPAN_BYTES).max(LEAST_SPANS);
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
            if wanted + wanted / 8 > elsewhere {
                break;
            }
            shelves.isolate(&self.frames, frame);
            self.begins[frame as usize].fetch_or(EMPTYING, Ordering::Relaxed);
            isolated += 1;
        }
        isolated
    }

    /// Whether [`Pool::relocate`] applies to the object. Without a lock, because a pass calls it
    /// for every handle.
    #[inline]
    pub fn is_isolated(&self, handle: Handle) -> bool {
        self.begins.get(handle.frame() as usize).is_some_and(|byte| byte.load(Ordering::Relaxed) & EMPTYING != 0)
    }

    /// Moves an object out of its isolated span. `swap` tries to replace the old handle by the
    /// given one in the holder's word, with no lock held.
    pub fn relocate(&self, old: Handle, swap: &mut dyn FnMut(Handle) -> bool) -> Relocated {
        let mut copy = [0; MAX_COMPRESSED];
        let copy = &mut copy[..old.object_len().min(MAX_COMPRESSED)];
        if !self.is_isolated(old) || self.read(old, copy).is_err() {
            return Relocated::No;
        }
        let Some(new) = self.insert_into_room(copy) else { return Relocated::NoRoom };
        let (gone, moved) = if swap(new) { (old, Relocated::Yes) } else { (new, Relocated::No) };
        let freed = self.remove(gone);
        debug_assert!(freed.is_ok(), "an object was freed at a place that its holder did not know");
        moved
    }

    /// Keeps a copy of `data`, 1 to [`MAX_COMPRESSED`] bytes, if it fits without a new span.
    pub fn insert_into_room(&self, data: &[u8]) -> Option<Handle> {
        self.insert_into_room_from(0, data)
    }

    /// Ends a pass: empty spans go back, the others are used again.
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
