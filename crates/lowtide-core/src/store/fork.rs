//! The store across fork.
//!
//! The child's copy-on-write memory gives it its own pool, tables and area 0. Swap files and the
//! record of references to their slots (`slot/holders.rs`) are shared. A child only reads a
//! parent's slots and drops its references; the owner frees unreferenced slots, and drops
//! references of dead or exec'ed children ([`Store::release_dead`]). After the owner's end,
//! references no longer matter.

use core::sync::atomic::Ordering;

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::table_word::Word;
use super::{Image, Store, StoreError};
use crate::device::Device;
use crate::slot::{Area, IoCounts, Refers};

const REFERS: Refers<'static> = Refers { all: true, asked: &refers };

fn refers(_slot: u64, word: u64) -> bool {
    Word::decode(word).is_reference()
}

impl Store {
    /// Parent, before a fork: adds a reference to every used slot of file areas for the next child
    /// of `me`. No call may store a page until the fork. Afterwards, call
    /// [`Store::fork_undo_references`] if it failed, [`Store::fork_child_died`] if the child died
    /// before [`Store::fork_child`]. `is_alive` as in [`Store::release_dead`].
    pub fn fork_add_references(&self, me: Image, is_alive: &mut dyn FnMut(Image) -> bool) {
        for area in self.areas.iter().filter(|area| area.is_shared()) {
            if !area.has_holder() {
                area.release_dead(me, is_alive, false);
            }
            debug_assert!(area.refers_to_all(&refers), "area {}", area.id());
            self.counters.stuck_references.add(area.add_references(me, REFERS));
        }
    }

    /// Leaves the pool out of forked children, which must not use the store. A copy would keep
    /// freed memory in use.
    ///
    /// # Errors
    /// `NOMEM` when the kernel refuses: they get a copy.
    pub fn keep_pool_from_children(&self) -> Result<(), Errno> {
        self.pool.keep_from_children()?;
        self.keeps_pool.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether [`Store::keep_pool_from_children`] has succeeded.
    pub fn keeps_pool_from_children(&self) -> bool {
        self.keeps_pool.load(Ordering::Relaxed)
    }

    /// Undoes [`Store::fork_add_references`] after a failed fork, with no call in between.
    pub fn fork_undo_references(&self) {
        self.areas.iter().for_each(|area| area.undo_references(Some(REFERS)));
    }

    /// Drops the latest child's remaining references from [`Store::fork_add_references`]: it is
    /// dead or will call [`Store::fork_child_whole`]. After its [`Store::fork_child`],
    /// [`Store::release_dead`] does this.
    pub fn fork_child_died(&self) {
        self.areas.iter().for_each(|area| area.undo_references(None));
    }

    /// Drops dead processes' references to slots of this process's swap files, and frees
    /// unreferenced slots. `is_alive` may deny only processes that never read a page again. Call it
    /// now and then after forks, and when slots are scarce. Returns whether there was work.
    pub fn release_dead(&self, me: Image, is_alive: &mut dyn FnMut(Image) -> bool) -> bool {
        let mut any = false;
        for area in self.areas.iter().filter(|area| area.is_shared() && !area.is_inherited()) {
            any |= area.release_dead(me, is_alive, true);
            any |= area.reap();
        }
        any
    }

    /// Calls `f` with the descriptor of each swap file here, its parents' included.
    pub fn each_file(&self, f: &mut dyn FnMut(i32)) {
        for area in self.areas.iter() {
            if let Some(file) = area.device.as_ref().and_then(Device::file)
                && file.raw_fd() >= 0
            {
                f(file.raw_fd());
            }
        }
    }

    /// Child, `me`: the first call after a fork. Swap files become inherited: readable and
    /// freeable, never allocated from. Their descriptors are forgotten, not closed, and replaced by
    /// `reopen(area, parent's descriptor)` if they hold pages of this process.
    ///
    /// # Errors
    /// The first error of `reopen` (only loads from that area fail; the offset is 0). `ParentDied`:
    /// nothing may be loaded.
    ///
    /// # Safety
    /// Only in a forked child with one thread, if no changing call was in flight in the parent at
    /// the fork, and after [`Store::fork_add_references`] there.
    pub unsafe fn fork_child(
        &self,
        me: Image,
        reopen: &mut dyn FnMut(u8, i32) -> Result<OwnedFd, Errno>,
    ) -> Result<(), StoreError> {
        // SAFETY: the caller's.
        unsafe { self.becomes_child(Some(me), reopen) }
    }

    /// As [`Store::fork_child`], in a child with all pages in memory, whose parent calls
    /// [`Store::fork_child_died`]: it has no references, opens no files of its parent's, and must
    /// free, not load, the slots in its tables.
    ///
    /// # Safety
    /// As [`Store::fork_child`].
    pub unsafe fn fork_child_whole(&self) {
        // SAFETY: the caller's.
        let _ = unsafe { self.becomes_child(None, &mut |_, _| Err(Errno::NOENT)) };
    }

    unsafe fn becomes_child(
        &self,
        me: Option<Image>,
        reopen: &mut dyn FnMut(u8, i32) -> Result<OwnedFd, Errno>,
    ) -> Result<(), StoreError> {
        // SAFETY: the caller's.
        unsafe { self.pool.reset_after_fork() };
        self.own.store(0, Ordering::Release);
        self.counters.after_fork();
        self.retired.iter().for_each(IoCounts::after_fork);
        let mut result = Ok(());
        // Descriptors in the parent, invalid here.
        let mut parents = [-1; 256];
        for area in self.areas.iter() {
            match me {
                Some(me) if !area.take_references(me) => result = Err(StoreError::ParentDied),
                Some(_) => {}
                None => area.leave_references(),
            }
            match &area.device {
                Some(Device::File(file)) => {
                    parents[area.id() as usize] = file.raw_fd();
                    file.replace(None);
                }
                Some(Device::Remote(remote)) => remote.forget(),
                None => {}
            }
        }
        let has_all = me.is_some() && result.is_ok();
        let is_empty = |area: &Area| match has_all {
            true => !area.has_references(REFERS),
            // The words are still to be freed.
            false => !area.any_word(|word| Word::decode(word).is_reference()),
        };
        // SAFETY: the caller's.
        unsafe { self.areas.after_fork(&is_empty) };
        for area in self.areas.iter() {
            let opened = match &area.device {
                Some(Device::File(file)) => reopen(area.id(), parents[area.id() as usize]).map(|fd| file.replace(Some(fd))),
                Some(Device::Remote(remote)) if me.is_some() => remote.open_again(),
                Some(Device::Remote(_)) | None => Ok(()),
            };
            if let Err(errno) = opened {
                result = result.and(Err(StoreError::Io { errno, offset: 0 }));
            }
        }
        result
    }
}
