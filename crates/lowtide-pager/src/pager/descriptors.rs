//! The pager's descriptors: those it works with, which a forked child replaces, and two in reserve.

use core::sync::atomic::Ordering;

use alloc::boxed::Box;
use rustix::fd::RawFd;
use rustix::io::Errno;

use super::Pager;
use crate::mappings::space::Exclusive;
use crate::sys::present::Present;
use crate::sys::uffd::Uffd;

impl Pager {
    /// The userfaultfd.
    pub fn uffd(&self) -> &Uffd {
        // Acquire, here and in `present`: pairs with the Release in `reopen`.
        // SAFETY: set by `new` or `reopen` from a box that is never freed.
        unsafe { &*self.uffd.load(Ordering::Acquire) }
    }

    pub(crate) fn present(&self) -> &Present {
        // SAFETY: as for `uffd`.
        unsafe { &*self.present.load(Ordering::Acquire) }
    }

    /// In a forked child: replaces the descriptors, which are the parent's.
    pub(crate) fn reopen(&self, uffd: Uffd, present: Present) {
        // The old ones are leaked on purpose: their numbers mean nothing in this process and must not be closed here.
        // Release: of the first two, pairs with the Acquire in `uffd` and `present`; of the third, with that in `keep_reserve`.
        self.uffd.store(Box::into_raw(Box::new(uffd)), Ordering::Release);
        self.present.store(Box::into_raw(Box::new(present)), Ordering::Release);
        self.reserve.store(core::ptr::null_mut(), Ordering::Release);
        self.keep_reserve();
    }

    /// Has this process's userfaultfd and page map at these numbers too, or at higher ones, and works with those from now on.
    /// (The old ones stay: others wait at them.) Returns the numbers.
    ///
    /// # Errors
    /// `MFILE`: there is no room there. `INVAL`: the limit of descriptors is lower.
    pub fn raise_descriptors(&self, least: i32) -> Result<[RawFd; 2], Errno> {
        let uffd = self.uffd().raised(least)?;
        let present = self.present().raised(least)?;
        let numbers = [uffd.raw(), present.raw()];
        // Release: pairs with the Acquire in `uffd` and `present`. What was there is leaked: others may have it in hand.
        self.uffd.store(Box::into_raw(Box::new(uffd)), Ordering::Release);
        self.present.store(Box::into_raw(Box::new(present)), Ordering::Release);
        Ok(numbers)
    }

    /// Keeps as many descriptors at hand as the two reports of a fork bring, if they are to be had.
    pub(crate) fn keep_reserve(&self) {
        // Acquire: pairs with the swap in `close_reserve`. Release: with the same, which frees what is stored here.
        if self.reserve.load(Ordering::Acquire).is_null()
            && let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(self.uffd().as_fd(), 0)
        {
            let another = rustix::io::fcntl_dupfd_cloexec(&fd, 0).ok();
            self.reserve.store(Box::into_raw(Box::new((fd, another))), Ordering::Release);
        }
    }

    /// Closes them; false: there are none. With the space lock held alone, as above but where nobody else is at work.
    pub(crate) fn close_reserve(&self, _: &Exclusive<'_>) -> bool {
        // AcqRel: pairs with the two in `keep_reserve`.
        let reserve = self.reserve.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !reserve.is_null() {
            // SAFETY: from `keep_reserve`, and taken out once.
            drop(unsafe { Box::from_raw(reserve) });
        }
        !reserve.is_null()
    }
}
