//! The swap areas of a store: by number, and by priority for allocation.
//!
//! A user of an area holds a reference, counted per CPU, so swapoff can wait for users to leave.

mod available;
mod reference;
mod swapoff;

use alloc::boxed::Box;
use core::ptr::null_mut;

use super::area::Area;
use super::cluster::ORDERS;
use super::error::SlotError;
use crate::lock::rank;
use crate::percpu::{self, CacheAligned};
use crate::sync::Lock;
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use available::Available;
pub use reference::AreaRef;
use reference::Users;

/// An entry has 8 bits for it. Models visit each repeatedly.
const MAX: usize = if cfg!(any(feature = "loom", feature = "shuttle")) { 2 } else { 256 };

#[derive(Debug)]
pub(super) struct Cell {
    pub(super) area: AtomicPtr<Area>,
    /// Made with the number's first area; lives as long as [`Areas`], for late users.
    users: AtomicPtr<Users>,
}

/// The areas of a store. All methods are thread-safe unless they say otherwise.
#[derive(Debug)]
pub struct Areas {
    pub(super) cells: [Cell; MAX],
    /// No cell from here on ever had an area. Only grows.
    high: AtomicUsize,
    available: Lock<Available, { rank::AVAILABLE }>,
    /// The latest area's number plus one, by CPU and order; 0: none.
    last: Box<[CacheAligned<[AtomicU32; ORDERS]>]>,
}

impl Default for Areas {
    fn default() -> Areas {
        Areas::new()
    }
}

impl Areas {
    /// No areas.
    #[must_use]
    pub fn new() -> Areas {
        let cell = |_| Cell { area: AtomicPtr::new(null_mut()), users: AtomicPtr::new(null_mut()) };
        Areas {
            cells: core::array::from_fn(cell),
            high: AtomicUsize::new(0),
            available: Lock::new(Available::new()),
            last: (0..percpu::count()).map(|_| CacheAligned(core::array::from_fn(|_| AtomicU32::new(0)))).collect(),
        }
    }

    /// The areas, by number.
    pub fn iter(&self) -> impl Iterator<Item = AreaRef<'_>> {
        // Acquire: pairs with the Release in `add`, after `users` was made.
        (0..self.high.load(Ordering::Acquire)).filter_map(|id| self.get(id as u8))
    }

    /// Adds an area under the lowest free number. `listed`: [`Areas::alloc`] uses it.
    ///
    /// # Errors
    /// `TooManyAreas`.
    pub fn add(&self, area: Area, listed: bool) -> Result<u8, SlotError> {
        let area = Box::into_raw(Box::new(area));
        for (id, cell) in self.cells.iter().enumerate() {
            if cell.users.load(Ordering::Acquire).is_null() {
                let users: Box<Users> = Box::new(core::array::from_fn(|_| CacheAligned(AtomicU32::new(0))));
                let users = Box::into_raw(users);
                // Release: pairs with the Acquire in `get`, `wait_for_users` and here.
                if cell.users.compare_exchange(null_mut(), users, Ordering::AcqRel, Ordering::Acquire).is_err() {
                    // SAFETY: made above, shared with no thread.
                    drop(unsafe { Box::from_raw(users) });
                }
            }
            // Release: pairs with the Acquire in `iter`.
            self.high.fetch_max(id + 1, Ordering::AcqRel);
            // SeqCst, for its Release: pairs with the load in `get`, which then sees the area.
            if cell.area.compare_exchange(null_mut(), area, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                if listed {
                    self.reopen(id as u8);
                }
                return Ok(id as u8);
            }
        }
        // SAFETY: made above, shared with no thread.
        drop(unsafe { Box::from_raw(area) });
        Err(SlotError::TooManyAreas)
    }

    /// Child side of a fork: a parent's areas become inherited and take no more pages; those that
    /// `is_empty` are removed.
    ///
    /// # Safety
    /// Only in a forked child with one thread and no [`AreaRef`], if no changing call was in flight
    /// in the parent at the fork.
    pub unsafe fn after_fork(&self, is_empty: &dyn Fn(&Area) -> bool) {
        // SAFETY: the caller's contract.
        unsafe { self.available.reset_after_fork() };
        // References of the parent's other threads would never be dropped here.
        for cell in &self.cells {
            // SAFETY: as in `get`.
            if let Some(users) = unsafe { cell.users.load(Ordering::Relaxed).as_ref() } {
                users.iter().for_each(|stripe| stripe.0.store(0, Ordering::Relaxed));
            }
        }
        for id in 0..=u8::MAX {
            let Some(area) = self.get(id) else { continue };
            // SAFETY: the caller's contract.
            unsafe { area.after_fork() };
            if !area.is_inherited() {
                continue;
            }
            self.available.lock().remove(id);
            if is_empty(&area) {
                drop(area);
                self.take_out(id);
            }
        }
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        for (id, cell) in self.cells.iter().enumerate() {
            self.take_out(id as u8);
            let users = cell.users.load(Ordering::Acquire);
            if !users.is_null() {
                // SAFETY: made from a Box; `&mut self` excludes other users.
                drop(unsafe { Box::from_raw(users) });
            }
        }
    }
}
