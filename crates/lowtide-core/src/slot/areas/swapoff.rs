//! An area is closed, opened again, and removed.

use alloc::boxed::Box;
use core::ptr::null_mut;

use super::Areas;
use super::available::Listed;
use crate::slot::error::SlotError;
use crate::sync::atomic::Ordering;

impl Areas {
    /// The first step of swapoff: nothing more is allocated there. Waits for calls in flight.
    ///
    /// # Errors
    /// `Closed` when there is no such area, or it is closed already.
    pub fn close(&self, id: u8) -> Result<(), SlotError> {
        {
            let area = self.get(id).ok_or(SlotError::Closed)?;
            let mut available = self.available.lock();
            if area.availability().close().ok_or(SlotError::Closed)? {
                available.remove(id);
            }
        }
        self.wait_for_users(id);
        // Still there: nobody removes it before it is quiet.
        if let Some(area) = self.get(id) {
            area.availability().quiesced();
        }
        Ok(())
    }

    /// Opens an area: one that was closed, or a new one. No effect while another thread is in [`Areas::close`] or
    /// [`Areas::remove`] with it.
    pub fn reopen(&self, id: u8) {
        if let Some(area) = self.get(id) {
            let mut available = self.available.lock();
            if area.availability().open() && area.availability().try_relist() {
                available.insert(Listed { priority: area.priority, id });
            }
        }
    }

    /// The last step of swapoff: removes a closed area of which no slot is in use. Waits for calls in flight.
    ///
    /// # Errors
    /// `Closed` when there is no such area; `StillInUse` when it is not closed (or [`Areas::close`] has not returned yet) or
    /// not empty.
    pub fn remove(&self, id: u8) -> Result<(), SlotError> {
        {
            let area = self.get(id).ok_or(SlotError::Closed)?;
            if !area.availability().begin_removal() {
                return Err(SlotError::StillInUse);
            }
            // Slot 0 is always used, once its cluster is.
            if area.used() > 1 {
                area.availability().cancel_removal();
                return Err(SlotError::StillInUse);
            }
        }
        self.take_out(id);
        Ok(())
    }

    /// The last step of a swapoff as far as this process is concerned: removes a closed area, or one of a parent's, where this
    /// process has nothing, as the caller knows. (Forked children may have something there: the slots stay theirs, and are
    /// given out no more.) Waits for calls in flight.
    ///
    /// # Errors
    /// `Closed` when there is no such area; `StillInUse` when it is not closed, or [`Areas::close`] has not returned yet.
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

    /// Takes an area out, whatever is in use there.
    pub(super) fn take_out(&self, id: u8) {
        // Sequentially consistent: pairs with the count in `get`.
        let area = self.cells[id as usize].area.swap(null_mut(), Ordering::SeqCst);
        if !area.is_null() {
            self.wait_for_users(id);
            // SAFETY: it came from a Box, and nobody has a reference: those who came before the swap have gone, and since then
            // nobody got one.
            drop(unsafe { Box::from_raw(area) });
        }
    }
}
