//! Closing, reopening and removing areas.

use alloc::boxed::Box;
use core::ptr::null_mut;

use super::Areas;
use super::available::Listed;
use crate::slot::error::SlotError;
use crate::sync::atomic::Ordering;

impl Areas {
    /// First step of swapoff: stops allocations, and waits for calls in flight.
    ///
    /// # Errors
    /// `Closed` if there is no such area, or it is closed.
    pub fn close(&self, id: u8) -> Result<(), SlotError> {
        {
            let area = self.get(id).ok_or(SlotError::Closed)?;
            let mut available = self.available.lock();
            if area.availability().close().ok_or(SlotError::Closed)? {
                available.remove(id);
            }
        }
        self.wait_for_users(id);
        // An area is removed only once quiet.
        if let Some(area) = self.get(id) {
            area.availability().quiesced();
        }
        Ok(())
    }

    /// Opens a new or closed area. No effect during [`Areas::close`] or [`Areas::remove`] of it.
    pub fn reopen(&self, id: u8) {
        if let Some(area) = self.get(id) {
            let mut available = self.available.lock();
            if area.availability().open() && area.availability().try_relist() {
                available.insert(Listed { priority: area.priority, id });
            }
        }
    }

    /// Last step of swapoff: removes a closed, empty area. Waits for calls in flight.
    ///
    /// # Errors
    /// `Closed` if there is no such area; `StillInUse` if it is not closed, [`Areas::close`] has
    /// not returned, or it is not empty.
    pub fn remove(&self, id: u8) -> Result<(), SlotError> {
        {
            let area = self.get(id).ok_or(SlotError::Closed)?;
            if !area.availability().begin_removal() {
                return Err(SlotError::StillInUse);
            }
            if area.used() > 1 {
                area.availability().cancel_removal();
                return Err(SlotError::StillInUse);
            }
        }
        self.take_out(id);
        Ok(())
    }

    /// Last step of swapoff for this process: removes a closed or a parent's area where it has
    /// nothing, as the caller knows. Slots of forked children are not reused. Waits for calls in
    /// flight.
    ///
    /// # Errors
    /// `Closed` if there is no such area; `StillInUse` if it is not closed, or [`Areas::close`] has
    /// not returned.
    pub fn dismiss(&self, id: u8) -> Result<(), SlotError> {
        {
            let area = self.get(id).ok_or(SlotError::Closed)?;
            if !area.is_inherited() && !area.availability().begin_removal() {
                return Err(SlotError::StillInUse);
            }
        }
        self.take_out(id);
        Ok(())
    }

    /// Whatever is in use there.
    pub(super) fn take_out(&self, id: u8) {
        // SeqCst: pairs with the count in `get`.
        let area = self.cells[id as usize].area.swap(null_mut(), Ordering::SeqCst);
        if !area.is_null() {
            self.wait_for_users(id);
            // SAFETY: from a Box; references from before the swap are gone, and none was made
            // since.
            drop(unsafe { Box::from_raw(area) });
        }
    }
}
