//! What a store does when the process forks.
//!
//! The child's memory is a copy-on-write copy of the parent's, so the pool, the tables and area 0 are its own at once. Swap files
//! are shared, and so are the reference counts of their slots. A child never allocates in a file that a parent made: it only reads
//! its slots and drops its references; the owner frees a slot when no reference is left, and finds that out by itself.

use core::sync::atomic::Ordering;

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::word::Word;
use super::{Store, StoreError};
use crate::device::Device;
use crate::slot::Area;

impl Store {
    /// Parent side of a fork, before it, with no other call in flight: adds one reference to every used slot of file areas on
    /// behalf of the child. If the fork then fails, [`Store::fork_undo_references`].
    pub fn fork_add_references(&self) {
        self.each_shared_page(|area, slot| {
            if area.add_reference(slot).is_err() {
                self.counters.stuck_references.add(1);
            }
        });
    }

    /// Takes back what [`Store::fork_add_references`] added, for a fork that failed. No other call may have been made between.
    pub fn fork_undo_references(&self) {
        self.each_shared_page(|area, slot| area.undo_reference(slot));
    }

    /// Drops this process's references to slots of swap files that its parents made, so that their owners can use them again: for
    /// a child that is about to exit or to become another program. The pages behind them are gone for this process.
    pub fn release_inherited(&self) {
        for area in self.areas.iter().filter(|area| area.is_inherited()) {
            area.each_word(|slot, word| {
                if Word::decode(word.load(Ordering::Acquire)).is_reference()
                    && let Some(e) = super::Entry::new(area.id(), slot)
                {
                    let _ = self.take(e);
                    self.drop_cached(e);
                }
            });
        }
    }

    /// Calls `f` with the number of the descriptor of each swap file that this process has open, those of its parents included.
    pub fn each_file(&self, f: &mut dyn FnMut(i32)) {
        for area in self.areas.iter() {
            if let Device::File(device) = &area.device
                && device.raw_fd() >= 0
            {
                f(device.raw_fd());
            }
        }
    }

    fn each_shared_page(&self, mut f: impl FnMut(&Area, u64)) {
        for area in self.areas.iter().filter(|area| area.is_shared()) {
            area.each_word(|slot, word| {
                if Word::decode(word.load(Ordering::Acquire)).is_reference() {
                    f(&area, slot);
                }
            });
        }
    }

    /// Child side of a fork: the first call in the child. Swap files become inherited: readable and freeable, never allocated
    /// from. Their descriptors are not closed, only forgotten, and replaced by what
    /// `reopen(area, number of the descriptor in the parent)` returns; files that hold no page of this process are not
    /// reopened. The child has no swap file of its own then: [`Store::add_file`].
    ///
    /// # Errors
    /// The first error of `reopen` (loads from that area then fail, all else works; the offset is 0).
    ///
    /// # Safety
    /// Only in a forked child that has one thread, when no other call was in flight in the parent at the moment of the fork, and
    /// after [`Store::fork_add_references`] in the parent.
    pub unsafe fn fork_child(&self, reopen: &mut dyn FnMut(u8, i32) -> Result<OwnedFd, Errno>) -> Result<(), StoreError> {
        // SAFETY: the caller answers.
        unsafe { self.pool.reset_after_fork() };
        self.own.store(0, Ordering::Release);
        self.counters.after_fork();
        let mut result = Ok(());
        // The numbers of descriptors in the parent, which mean nothing here.
        let mut parents = [-1; 256];
        for area in self.areas.iter() {
            if let Device::File(device) = &area.device {
                parents[area.id() as usize] = device.raw_fd();
                device.replace(None);
            }
        }
        let is_empty = |area: &Area| {
            let mut empty = true;
            area.each_word(|_, word| empty &= !Word::decode(word.load(Ordering::Relaxed)).is_reference());
            empty
        };
        // SAFETY: the caller answers.
        unsafe { self.areas.after_fork(&is_empty) };
        for area in self.areas.iter() {
            let Device::File(device) = &area.device else { continue };
            match reopen(area.id(), parents[area.id() as usize]) {
                Ok(fd) => device.replace(Some(fd)),
                Err(errno) => result = result.and(Err(StoreError::Io { errno, offset: 0 })),
            }
        }
        result
    }
}
