//! Where a new object goes: into a gap, or, unless the pool is loose, a new span; one that does not compress into a frame of
//! its own.

use super::handle::Handle;
use super::span::{MAX_FRAMES, granules};
use super::{MAX_COMPRESSED, Pool, RAW, SHARDS, Shard};
use crate::frame::FrameNo;
use crate::percpu;
use crate::sync::atomic::Ordering;
use crate::vm::PAGE_SIZE;

/// Objects in a row that go to one shard.
const SHARD_TURN: usize = 256;
/// While a larger part than one in this is free, the pool makes room in its spans before it adds one.
const LOOSE: usize = 40;
/// Shortest object that is kept raw.
const RAW_LEAST: usize = MAX_COMPRESSED + 1;

impl Pool {
    /// The shard for the next object: another one for each CPU, and for every so many objects. One thread stores nearly all of
    /// them, and whoever loads what it stored a while ago is not to meet it.
    fn home(&self) -> usize {
        let inserted = self.inserted.fetch_add(1, Ordering::Relaxed);
        (percpu::current() + inserted / SHARD_TURN) % self.active()
    }

    /// Keeps a copy of `data`, 1 to 4096 bytes. `None` when the limit or memory does not allow, or the length is wrong.
    pub fn insert(&self, data: &[u8]) -> Option<Handle> {
        match data.len() {
            1..=MAX_COMPRESSED => {
                let home = self.home();
                self.insert_into(home, data).or_else(|| self.insert_into_room_from(home, data))
            }
            RAW_LEAST..=PAGE_SIZE => self.insert_raw(data),
            _ => None,
        }
    }

    /// Into a gap of the shard, or a new span of it, unless the limit or looseness forbid one. One lock is held at a time.
    fn insert_into(&self, shard: usize, data: &[u8]) -> Option<Handle> {
        let mut shelves = self.shards[shard].lock();
        if let Some(frame) = shelves.find(&self.frames, granules(data.len())) {
            return Some(self.put(&mut shelves, frame, data));
        }
        if self.is_loose() {
            drop(shelves);
            let handle = self.insert_into_room_from(shard, data);
            if handle.is_some() {
                return handle;
            }
            shelves = self.shards[shard].lock();
        }
        let frame = self.grow(shard, &mut shelves)?;
        Some(self.put(&mut shelves, frame, data))
    }

    /// Where there is room, looking at shard `home` first: into a gap that is long enough, else into the span of which most is
    /// free.
    pub(super) fn insert_into_room_from(&self, home: usize, data: &[u8]) -> Option<Handle> {
        let need = granules(data.len());
        let mut emptiest = (0, home);
        for i in 0..SHARDS {
            let shard = (home + i) % SHARDS;
            let mut shelves = self.shards[shard].lock();
            if let Some(frame) = shelves.find(&self.frames, need) {
                return Some(self.put(&mut shelves, frame, data));
            }
            if let Some((room, _)) = shelves.emptiest(&self.frames)
                && room > emptiest.0
            {
                emptiest = (room, shard);
            }
        }
        let mut shelves = self.shards[emptiest.1].lock();
        let (_, frame) = shelves.emptiest(&self.frames).filter(|(room, _)| *room >= need)?;
        Some(self.put(&mut shelves, frame, data))
    }

    /// Whether there is so much free room inside spans that objects rather go there than to a new span.
    fn is_loose(&self) -> bool {
        self.free() > self.bytes() / LOOSE
    }

    /// Puts an object into a span of a locked shard that has room for it.
    fn put(&self, shelves: &mut Shard<'_>, frame: u32, data: &[u8]) -> Handle {
        let place = self.span(frame, shelves).put(data);
        shelves.reshelve(&self.frames, frame);
        self.count(data.len());
        Handle::new(frame, place, data.len())
    }

    fn insert_raw(&self, data: &[u8]) -> Option<Handle> {
        let frame = self.frames_for(1)?;
        // SAFETY: a page of its own, just handed out: nobody else knows it, and a handle of an object that was there before is
        // refused, because the frame's byte is 0.
        let page = unsafe { core::slice::from_raw_parts_mut(self.frames.ptr(FrameNo(frame)), PAGE_SIZE) };
        page[..data.len()].copy_from_slice(data);
        let _shard = self.shards[frame as usize % SHARDS].lock();
        self.begins[frame as usize].store(RAW, Ordering::Relaxed);
        self.count(data.len());
        Some(Handle::new(frame, 0, data.len()))
    }

    /// Adds an empty span to a locked shard, if the limit allows.
    fn grow(&self, shard: usize, shelves: &mut Shard<'_>) -> Option<u32> {
        let n = self.limit.left().clamp(1, MAX_FRAMES);
        let frame = self.frames_for(n)?;
        self.span(frame, shelves).clear(n);
        shelves.link(&self.frames, frame);
        self.begins[frame as usize].store(shard as u8 + 1, Ordering::Relaxed);
        Some(frame)
    }
}
