//! A walk over the slots of all areas, in short steps, by one thread at a time.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::slot::{AreaRef, Areas, CLUSTER_SLOTS};

const AREAS: usize = 1 << u8::BITS;

#[derive(Debug)]
pub(super) struct Walk {
    busy: AtomicBool,
    /// The current area; [`AREAS`]: the walk is over.
    area: AtomicUsize,
    slot: AtomicU64,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk { busy: AtomicBool::new(false), area: AtomicUsize::new(AREAS), slot: AtomicU64::new(0) }
    }
}

impl Walk {
    pub(super) fn is_under_way(&self) -> bool {
        self.area.load(Ordering::Relaxed) < AREAS
    }

    /// Goes on; `None` while another thread walks.
    pub(super) fn go_on<'a>(&'a self, areas: &'a Areas) -> Option<Walker<'a>> {
        // Acquire: pairs with the Release in the last walker's drop.
        let busy = self.busy.swap(true, Ordering::Acquire);
        (!busy).then(|| Walker { walk: self, areas, area: None, slot: self.slot.load(Ordering::Relaxed) })
    }
}

#[derive(Debug)]
pub(super) struct Walker<'a> {
    walk: &'a Walk,
    areas: &'a Areas,
    /// The current area, and its first never allocated slot; `None` before its first slot.
    area: Option<(AreaRef<'a>, u64)>,
    slot: u64,
}

impl<'a> Walker<'a> {
    pub(super) fn begin(&mut self) {
        self.go_to(0);
    }

    pub(super) fn end(&mut self) {
        self.go_to(AREAS);
    }

    fn go_to(&mut self, area: usize) {
        (self.area, self.slot) = (None, 0);
        self.walk.area.store(area, Ordering::Relaxed);
    }

    /// The next slot that may have been allocated, and its area. `None`: the walk is over.
    pub(super) fn next(&mut self) -> Option<(&AreaRef<'a>, u64)> {
        loop {
            let id = self.walk.area.load(Ordering::Relaxed);
            match &self.area {
                Some((_, end)) if self.slot < *end => break,
                None if id >= AREAS => return None,
                Some(_) => self.go_to(id + 1),
                None => match self.areas.get(id as u8) {
                    Some(area) => {
                        let end = area.opened_slots();
                        self.area = Some((area, end));
                    }
                    None => self.go_to(id + 1),
                },
            }
        }
        self.slot += 1;
        self.area.as_ref().map(|(area, _)| (area, self.slot - 1))
    }

    pub(super) fn skip_cluster(&mut self) {
        self.slot = self.slot.next_multiple_of(CLUSTER_SLOTS as u64);
    }
}

impl Drop for Walker<'_> {
    fn drop(&mut self) {
        self.walk.slot.store(self.slot, Ordering::Relaxed);
        // Release: pairs with the Acquire in `go_on`.
        self.walk.busy.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;
    use crate::slot::{Area, AreaConfig};
    use std::vec::Vec;

    fn areas() -> Areas {
        let areas = Areas::new();
        for (clusters, opened) in [(1, 1), (2, 2), (1, 0)] {
            let cfg = AreaConfig { slots: (clusters * CLUSTER_SLOTS) as u64, ..AreaConfig::default() };
            let id = areas.add(Area::new(None, cfg).unwrap(), true).unwrap();
            let area = areas.get(id).unwrap();
            while opened > 0 && area.alloc(0).is_some() {}
            assert_eq!(area.opened_clusters(), opened);
        }
        areas
    }

    fn some(walker: &mut Walker<'_>, n: usize) -> Vec<(u8, u64)> {
        core::iter::from_fn(|| walker.next().map(|(area, slot)| (area.id(), slot))).take(n).collect()
    }

    #[test]
    fn all_slots_of_all_areas_once_and_in_order_however_short_the_calls_are() {
        let (areas, walk) = (areas(), Walk::default());
        assert!(walk.go_on(&areas).unwrap().next().is_none() && !walk.is_under_way(), "not begun");
        walk.go_on(&areas).unwrap().begin();
        let mut all = Vec::new();
        while walk.is_under_way() {
            all.extend(some(&mut walk.go_on(&areas).unwrap(), 100));
        }
        let expected = (0..512).map(|slot| (0, slot)).chain((0..1024).map(|slot| (1, slot)));
        assert!(all.into_iter().eq(expected));
    }

    #[test]
    fn clusters_are_passed_over_and_walks_ended() {
        let (areas, walk) = (areas(), Walk::default());
        let mut walker = walk.go_on(&areas).unwrap();
        walker.begin();
        assert_eq!(some(&mut walker, 2), [(0, 0), (0, 1)]);
        walker.skip_cluster();
        assert_eq!(some(&mut walker, 512).last(), Some(&(1, 511)), "the last slot of a cluster");
        walker.skip_cluster();
        assert_eq!(some(&mut walker, 1), [(1, 512)], "there was nothing to pass over");
        assert!(walk.go_on(&areas).is_none(), "one at a time");
        walker.end();
        assert!(walker.next().is_none());
        drop(walker);
        assert!(!walk.is_under_way() && walk.go_on(&areas).is_some());
    }
}
