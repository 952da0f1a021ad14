//! The areas that take pages: higher priorities first, equal ones in turn.

use super::{AreaRef, Areas, MAX};
use crate::percpu;
use crate::slot::area::Area;
use crate::slot::availability::Unavailable;
use crate::slot::swap_cache::SwapCache;
use crate::sync::atomic::Ordering;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listed {
    pub(super) priority: i16,
    pub(super) id: u8,
}

/// In order of trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Available {
    list: [Listed; MAX],
    len: usize,
}

impl Available {
    pub(super) fn new() -> Available {
        Available { list: [Listed::default(); MAX], len: 0 }
    }

    /// Behind those of its priority and higher.
    pub(super) fn insert(&mut self, new: Listed) {
        let at = self.list[..self.len].iter().position(|l| l.priority < new.priority).unwrap_or(self.len);
        self.list.copy_within(at..self.len, at + 1);
        self.list[at] = new;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, id: u8) {
        if let Some(at) = self.list[..self.len].iter().position(|l| l.id == id) {
            self.list.copy_within(at + 1..self.len, at);
            self.len -= 1;
        }
    }
}

impl Areas {
    /// Allocates 2^`order` aligned slots: higher priorities first, equal ones in turn (until a
    /// CPU's cluster is used up), without resting areas. Returns the area and the first slot.
    pub fn alloc<'a>(&'a self, order: u32, cache: &dyn SwapCache) -> Option<(AreaRef<'a>, u64)> {
        self.alloc_if(order, cache, true)
    }

    /// As [`Areas::alloc`], else from resting areas: for pages that need not be written now.
    pub fn alloc_to_write_later<'a>(&'a self, order: u32, cache: &dyn SwapCache) -> Option<(AreaRef<'a>, u64)> {
        self.alloc_if(order, cache, true).or_else(|| {
            let resting = self.iter().any(|area| area.rests());
            if resting { self.alloc_if(order, cache, false) } else { None }
        })
    }

    /// `writable`: not from resting areas; else only from those.
    fn alloc_if<'a>(&'a self, order: u32, cache: &dyn SwapCache, writable: bool) -> Option<(AreaRef<'a>, u64)> {
        let last = self.last[percpu::current()].0.get(order as usize)?;
        if writable
            && let Some(id) = last.load(Ordering::Relaxed).checked_sub(1)
            && let Some(area) = self.get(id as u8)
            && let Some(slot) = area.alloc_next(order)
        {
            return Some((area, slot));
        }
        let available = self.take_turn();
        let try_area = |area: AreaRef<'a>, alloc: &dyn Fn(&AreaRef<'a>) -> Option<u64>| {
            let slot = if area.rests() == writable { None } else { alloc(&area) }?;
            if writable {
                last.store(u32::from(area.id()) + 1, Ordering::Relaxed);
            }
            Some((area, slot))
        };
        let first = |area: &AreaRef<'a>| area.alloc_where_scarce(order, cache);
        let found = available.list[..available.len].iter().find_map(|l| try_area(self.get(l.id)?, &first));
        // Off the list, but with room if they can reclaim slots.
        let full = |area: &AreaRef<'a>| area.availability().is_full();
        let last = |area: &AreaRef<'a>| match full(area) {
            true => area.alloc_reclaiming(order, cache),
            false => area.alloc_from_copies(order, cache),
        };
        let may = |area: &AreaRef<'a>| {
            area.may_be_reclaimed() && (full(area) || matches!(area.unavailable(), None | Some(Unavailable::Resting)))
        };
        found.or_else(|| self.iter().filter(may).find_map(|area| try_area(area, &last)))
    }

    /// For the next caller, the first area moves behind others of its priority.
    fn take_turn(&self) -> Available {
        let mut available = self.available.lock();
        let now = *available;
        if let Some(first) = now.list[..now.len].first() {
            available.remove(first.id);
            available.insert(*first);
        }
        now
    }

    /// If that falls to this thread.
    #[cold]
    pub(super) fn update_list(&self, id: u8, area: &Area) {
        let mut available = self.available.lock();
        if area.availability().try_delist() {
            available.remove(id);
        } else if area.availability().try_relist() {
            available.insert(Listed { priority: area.priority, id });
        }
    }

    #[cfg(test)]
    pub(in crate::slot) fn listed(&self) -> alloc::vec::Vec<u8> {
        let available = self.available.lock();
        available.list[..available.len].iter().map(|l| l.id).collect()
    }
}
