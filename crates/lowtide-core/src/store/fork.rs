//! What a store does when the process forks.
//!
//! The child's memory is a copy-on-write copy of the parent's, so the pool, the tables and area 0 are its own at once. Swap
//! files are shared, and so is who refers to their slots (`slot/holders.rs`). A child never allocates in a file that a parent
//! made: it only reads its slots and drops its references; the owner frees a slot when no reference is left, and finds that out
//! by itself. What a child had when it died or called exec, the owner drops on its behalf ([`Store::release_dead`]).
//!
//! When the owner is gone itself, nothing is allocated in its files any more, and what is referred to there concerns nobody.

use core::sync::atomic::Ordering;

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::table_word::Word;
use super::{Image, Store, StoreError};
use crate::device::Device;
use crate::slot::{Area, IoCounts, Refers};

/// To which slots this process refers.
const REFERS: Refers<'static> = Refers { all: true, asked: &refers };

/// Whether a slot's table word refers to it.
fn refers(_slot: u64, word: u64) -> bool {
    Word::decode(word).is_reference()
}

impl Store {
    /// Parent side of a fork, before it, with no other call in flight from here to the fork that stores a page: adds one
    /// reference to every used slot of file areas on behalf of the child that this process, `me`, makes next. (The child finds
    /// in its copy of the store which.) If the fork then fails, [`Store::fork_undo_references`]; if the child dies before it
    /// could call [`Store::fork_child`], [`Store::fork_child_died`]. `is_alive` as in [`Store::release_dead`].
    pub fn fork_add_references(&self, me: Image, is_alive: &mut dyn FnMut(Image) -> bool) {
        for area in self.areas.iter().filter(|area| area.is_shared()) {
            if !area.has_holder() {
                // Children that died since the last regular look.
                area.release_dead(me, is_alive, false);
            }
            debug_assert!(area.refers_to_all(&refers), "area {}", area.id());
            self.counters.stuck_references.add(area.add_references(me, REFERS));
        }
    }

    /// Forked children get no copy of the pool: for a process none of whose children ever uses the store. (A copy would be dead
    /// weight, and what the parent frees or overwrites would stay in memory because of it.)
    ///
    /// # Errors
    /// `NOMEM` when the kernel refuses: they get one.
    pub fn keep_pool_from_children(&self) -> Result<(), Errno> {
        self.pool.keep_from_children()?;
        self.keeps_pool.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether it is kept from them: then no child may use the store.
    pub fn keeps_pool_from_children(&self) -> bool {
        self.keeps_pool.load(Ordering::Relaxed)
    }

    /// Takes back what [`Store::fork_add_references`] added, for a fork that failed. No other call may have been made between.
    pub fn fork_undo_references(&self) {
        self.areas.iter().for_each(|area| area.undo_references(Some(REFERS)));
    }

    /// Takes back what the child of the latest fork, which is dead or will call [`Store::fork_child_whole`], still has of what
    /// [`Store::fork_add_references`] added, unless it has got as far as [`Store::fork_child`]: then [`Store::release_dead`]
    /// does.
    pub fn fork_child_died(&self) {
        self.areas.iter().for_each(|area| area.undo_references(None));
    }

    /// Drops the references that other processes have to slots of this process's swap files, where `is_alive` says that they
    /// are dead: that they can't read another page, and never come back. To be called now and then where the process has
    /// forked, or its children have, and when slots are scarce. Slots that nobody refers to any more are free then. Whether
    /// there was anything to do.
    pub fn release_dead(&self, me: Image, is_alive: &mut dyn FnMut(Image) -> bool) -> bool {
        let mut any = false;
        for area in self.areas.iter().filter(|area| area.is_shared() && !area.is_inherited()) {
            any |= area.release_dead(me, is_alive, true);
            any |= area.reap();
        }
        any
    }

    /// Calls `f` with the number of the descriptor of each swap file that this process has open, those of its parents included.
    pub fn each_file(&self, f: &mut dyn FnMut(i32)) {
        for area in self.areas.iter() {
            if let Some(file) = area.device.as_ref().and_then(Device::file)
                && file.raw_fd() >= 0
            {
                f(file.raw_fd());
            }
        }
    }

    /// Child side of a fork: the first call in the child, which is `me`. Swap files become inherited: readable and freeable,
    /// never allocated from. Their descriptors are not closed, only forgotten, and replaced by what `reopen(area, number of the
    /// descriptor in the parent)` returns; files that hold no page of this process are not reopened. The child has no swap file
    /// of its own then: [`Store::add_file`].
    ///
    /// # Errors
    /// The first error of `reopen` (loads from that area then fail, all else works; the offset is 0). `ParentDied`: nothing may
    /// be loaded.
    ///
    /// # Safety
    /// Only in a forked child that has one thread, when no call that changes anything was in flight in the parent at the moment
    /// of the fork, and after [`Store::fork_add_references`] in the parent.
    pub unsafe fn fork_child(
        &self,
        me: Image,
        reopen: &mut dyn FnMut(u8, i32) -> Result<OwnedFd, Errno>,
    ) -> Result<(), StoreError> {
        // SAFETY: the caller answers.
        unsafe { self.becomes_child(Some(me), reopen) }
    }

    /// As [`Store::fork_child`], in a child all of whose pages are in memory, and whose parent has called
    /// [`Store::fork_child_died`] for it: it has references to nothing in its parent's swap files, and opens none. What its own
    /// tables still refer to there it must free, and not load.
    ///
    /// # Safety
    /// As [`Store::fork_child`].
    pub unsafe fn fork_child_whole(&self) {
        // SAFETY: the caller answers.
        let _ = unsafe { self.becomes_child(None, &mut |_, _| Err(Errno::NOENT)) };
    }

    /// `me`: the child, if it has references.
    unsafe fn becomes_child(
        &self,
        me: Option<Image>,
        reopen: &mut dyn FnMut(u8, i32) -> Result<OwnedFd, Errno>,
    ) -> Result<(), StoreError> {
        // SAFETY: the caller answers.
        unsafe { self.pool.reset_after_fork() };
        self.own.store(0, Ordering::Release);
        self.counters.after_fork();
        self.retired.iter().for_each(IoCounts::after_fork);
        let mut result = Ok(());
        // The numbers of descriptors in the parent, which mean nothing here.
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
            // What its words say is still to be freed, though it has no references.
            false => !area.any_word(|word| Word::decode(word).is_reference()),
        };
        // SAFETY: the caller answers.
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
