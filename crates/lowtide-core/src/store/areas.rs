//! The swap areas of a store, by number.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::slot::Area;
use crate::store::StoreError;

/// Most areas: an entry has 8 bits for them.
const MAX: usize = 256;

/// Areas by number. They are added at any time and removed only while nobody else uses the store.
#[derive(Debug)]
pub(super) struct Areas {
    list: [AtomicPtr<Area>; MAX],
}

impl Areas {
    pub(super) const fn new() -> Areas {
        Areas { list: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX] }
    }

    /// The area of that number.
    pub(super) fn get(&self, id: u8) -> Option<&Area> {
        // SAFETY: a pointer in the list came from a Box, and goes only with `remove` or the store itself, when nobody else uses
        // the store: no reference outlives it.
        unsafe { self.list[id as usize].load(Ordering::Acquire).as_ref() }
    }

    /// Adds an area under the lowest free number.
    pub(super) fn add(&self, area: Area) -> Result<u8, StoreError> {
        let area = Box::into_raw(Box::new(area));
        for (id, place) in self.list.iter().enumerate() {
            if place.compare_exchange(core::ptr::null_mut(), area, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(id as u8);
            }
        }
        // SAFETY: made above and not entered anywhere.
        drop(unsafe { Box::from_raw(area) });
        Err(StoreError::NoMemory)
    }

    /// Removes an area.
    ///
    /// # Safety
    /// Nobody else uses the store, and no reference to the area exists.
    pub(super) unsafe fn remove(&self, id: u8) {
        let area = self.list[id as usize].swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !area.is_null() {
            // SAFETY: it came from a Box; the caller answers for references.
            drop(unsafe { Box::from_raw(area) });
        }
    }

    /// The areas and their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u8, &Area)> {
        (0..=u8::MAX).filter_map(|id| Some((id, self.get(id)?)))
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        for id in 0..=u8::MAX {
            // SAFETY: the store is being dropped: nobody uses it.
            unsafe { self.remove(id) }
        }
    }
}
