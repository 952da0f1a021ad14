//! Checks of a whole pool.

use super::shelf::Shelves;
use super::span::GRANULE;
use super::{Pool, RAW, SHARDS, Shard, held};
use crate::sync::atomic::Ordering;
use crate::vm::PAGE_SIZE;

/// An inconsistency that [`Pool::validate`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken(pub &'static str);

#[derive(Default)]
struct Found {
    frames: usize,
    spans: usize,
    objects: usize,
    stored: usize,
    held: usize,
}

impl Pool {
    /// Compares every span and list with the pool's figures. For tests: no other thread may use the
    /// pool, and no span may be isolated.
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn validate(&self) -> Result<(), Broken> {
        let mut found = Found::default();
        for (frame, byte) in self.begins.iter().enumerate() {
            match byte.load(Ordering::Relaxed) {
                0 => {}
                RAW => found.frames += 1,
                byte if byte as usize <= SHARDS => {
                    let shelves = self.shards[byte as usize - 1].lock();
                    self.check_span(frame as u32, &shelves, &mut found)?;
                }
                _ => return Err(Broken("a frame's byte names no shard")),
            }
        }
        let raw = self.begins.iter().filter(|b| b.load(Ordering::Relaxed) == RAW).count();
        let listed = (0..SHARDS).map(|shard| self.check_shelves(shard)).sum::<Result<usize, Broken>>()?;
        if listed != 2 * found.spans {
            return Err(Broken("a span is on no shelf"));
        }
        if found.frames * PAGE_SIZE != self.bytes() || found.frames != self.frames.in_use() {
            return Err(Broken("frames held are counted wrongly"));
        }
        if found.objects + raw != self.objects() {
            return Err(Broken("objects are counted wrongly"));
        }
        if found.held + raw * PAGE_SIZE != self.limit.held.load(Ordering::Relaxed) {
            return Err(Broken("bytes that objects take are counted wrongly"));
        }
        // Raw pages have their length only in their handles.
        let rest = self.stored_bytes().checked_sub(found.stored).ok_or(Broken("bytes of objects are counted wrongly"))?;
        if rest > raw * PAGE_SIZE || (raw == 0 && rest > 0) {
            return Err(Broken("bytes of objects are counted wrongly"));
        }
        Ok(())
    }

    fn check_span(&self, frame: u32, shelves: &Shard<'_>, found: &mut Found) -> Result<(), Broken> {
        let mut span = self.span(frame, shelves);
        let size = span.size();
        let mut taken = [0u64; super::SPAN_BYTES / GRANULE / 64];
        let (mut live, mut used) = (0, 0);
        for place in 0..span.places() {
            let Some(object) = span.object(place) else { continue };
            let at = object.begins();
            if at * GRANULE + object.len() > size {
                return Err(Broken("an object reaches beyond its span"));
            }
            for granule in at..at + object.len().div_ceil(GRANULE) {
                if taken[granule / 64] >> (granule % 64) & 1 == 1 {
                    return Err(Broken("two objects overlap"));
                }
                taken[granule / 64] |= 1 << (granule % 64);
                used += GRANULE;
            }
            live += 1;
            found.stored += object.len();
            found.held += held(object.len());
        }
        if live == 0 || span.is_empty() {
            return Err(Broken("a span without objects was kept"));
        }
        if span.front() + span.free() + used != size || !span.is_sound() {
            return Err(Broken("a span counts its free bytes wrongly"));
        }
        let shelves = Shelves::shelves_of(&mut span);
        if span.header().shelves != shelves {
            return Err(Broken("a span is on the wrong shelf"));
        }
        found.objects += live;
        found.frames += span.frames();
        found.spans += 1;
        Ok(())
    }

    /// Walks the lists of a shard; returns their entries, two for each span.
    fn check_shelves(&self, shard: usize) -> Result<usize, Broken> {
        let shelves = self.shards[shard].lock();
        let mut listed = 0;
        let mut shelf = 0;
        while let Some(mut next) = shelves.head(shelf) {
            let mut prev = 0;
            while let Some(frame) = next.checked_sub(1) {
                if self.begins[frame as usize].load(Ordering::Relaxed) as usize != shard + 1 {
                    return Err(Broken("a list names a frame where no span of its shard begins"));
                }
                let mut span = self.span(frame, &shelves);
                let by = Shelves::links_of(shelf);
                let (link, on) = (span.header().links[by], span.header().shelves[by]);
                if link.prev != prev || on as usize != shelf {
                    return Err(Broken("a list is torn"));
                }
                (prev, next) = (next, link.next);
                listed += 1;
            }
            if shelves.is_marked(shelf) != (prev != 0) {
                return Err(Broken("a shelf's bit is wrong"));
            }
            shelf += 1;
        }
        Ok(listed)
    }
}
