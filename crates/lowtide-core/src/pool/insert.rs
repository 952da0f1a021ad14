//! Chooses a new object's place: a gap, or, unless the pool is loose, a new span; a frame for an
//! incompressible page.

use super::handle::Handle;
use super::span::{MAX_FRAMES, granules};
use super::{MAX_COMPRESSED, Pool, RAW, SHARDS, Shard};
use crate::frame::FrameNo;
use crate::percpu;
use crate::sync::atomic::Ordering;
use crate::vm::PAGE_SIZE;

/// Consecutive objects of one shard.
const SHARD_TURN: usize = 256;
/// Spans make room before one is added while more than one part in this is free.
const LOOSE: usize = 40;
const RAW_LEAST: usize = MAX_COMPRESSED + 1;

impl Pool {
    /// By CPU and count: loads of what the one storing thread stored a while ago should not meet
    /// its lock.
    fn home(&self) -> usize {
        let inserted = self.inserted.fetch_add(1, Ordering::Relaxed);
        (percpu::current() + inserted / SHARD_TURN) % self.active()
    }

    /// Keeps a copy of `data`, 1 to 4096 bytes. `None`: limit, memory or a wrong length.
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

    /// Holds one lock at a time.
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

    /// A sufficient gap, from shard `home` on, else the emptiest span.
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

    fn is_loose(&self) -> bool {
        self.free() > self.bytes() / LOOSE
    }

    fn put(&self, shelves: &mut Shard<'_>, frame: u32, data: &[u8]) -> Handle {
        let place = self.span(frame, shelves).put(data);
        shelves.reshelve(&self.frames, frame);
        self.count(data.len());
        Handle::new(frame, place, data.len())
    }

    fn insert_raw(&self, data: &[u8]) -> Option<Handle> {
        let frame = self.frames_for(1)?;
        // SAFETY: a page just handed out, unknown to other threads; the frame's byte is 0, so stale
        // handles are refused.
        let page = unsafe { core::slice::from_raw_parts_mut(self.frames.ptr(FrameNo(frame)), PAGE_SIZE) };
        page[..data.len()].copy_from_slice(data);
        let _shard = self.shards[frame as usize % SHARDS].lock();
        self.begins[frame as usize].store(RAW, Ordering::Relaxed);
        self.count(data.len());
        Some(Handle::new(frame, 0, data.len()))
    }

    fn grow(&self, shard: usize, shelves: &mut Shard<'_>) -> Option<u32> {
        let n = self.limit.left().clamp(1, MAX_FRAMES);
        let frame = self.frames_for(n)?;
        self.span(frame, shelves).clear(n);
        shelves.link(&self.frames, frame);
        self.begins[frame as usize].store(shard as u8 + 1, Ordering::Relaxed);
        Some(frame)
    }
}
