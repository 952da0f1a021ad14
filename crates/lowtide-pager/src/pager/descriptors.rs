//! The pager's descriptors, replaced in a forked child, and two in reserve.

use core::sync::atomic::Ordering;

use alloc::boxed::Box;
use rustix::fd::RawFd;
use rustix::io::Errno;

use lowtide_sys::present::Present;
use lowtide_sys::uffd::Uffd;

use super::Pager;
use crate::pages::space::Exclusive;

impl Pager {
    /// The userfaultfd.
    pub fn uffd(&self) -> &Uffd {
        // Acquire, here and in `present`: pairs with the Release in `reopen` and
        // `raise_descriptors`.
        // SAFETY: a box that is never freed.
        unsafe { &*self.kernel.uffd.load(Ordering::Acquire) }
    }

    pub(crate) fn present(&self) -> &Present {
        // SAFETY: as for `uffd`.
        unsafe { &*self.kernel.present.load(Ordering::Acquire) }
    }

    /// In a forked child.
    pub(crate) fn reopen(&self, uffd: Uffd, present: Present) {
        // Leaked: the old numbers must not be closed here. Release: the first two pair with the
        // Acquire in `uffd` and `present`, the third with that in `keep_reserve`.
        self.kernel.uffd.store(Box::into_raw(Box::new(uffd)), Ordering::Release);
        self.kernel.present.store(Box::into_raw(Box::new(present)), Ordering::Release);
        self.kernel.reserve.store(core::ptr::null_mut(), Ordering::Release);
        self.keep_reserve();
    }

    /// Duplicates both to descriptors of at least `least`, for use from now on (threads wait on the
    /// old ones).
    ///
    /// # Errors
    /// `MFILE`: no room. `INVAL`: above the limit.
    pub fn raise_descriptors(&self, least: i32) -> Result<[RawFd; 2], Errno> {
        let uffd = self.uffd().raised(least)?;
        let present = self.present().raised(least)?;
        let numbers = [uffd.raw(), present.raw()];
        // Release: pairs with the Acquire in `uffd` and `present`. Leaked: the old ones may be in
        // use.
        self.kernel.uffd.store(Box::into_raw(Box::new(uffd)), Ordering::Release);
        self.kernel.present.store(Box::into_raw(Box::new(present)), Ordering::Release);
        Ok(numbers)
    }

    /// Two, as a fork's reports bring.
    pub(crate) fn keep_reserve(&self) {
        // Acquire: pairs with the swap in `close_reserve`. Release: with the same, which frees the
        // box.
        if self.kernel.reserve.load(Ordering::Acquire).is_null()
            && let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(self.uffd().as_fd(), 0)
        {
            let another = rustix::io::fcntl_dupfd_cloexec(&fd, 0).ok();
            self.kernel.reserve.store(Box::into_raw(Box::new((fd, another))), Ordering::Release);
        }
    }

    /// False: none. Needs the exclusive space lock, as `keep_reserve` does beside other threads.
    pub(crate) fn close_reserve(&self, _: &Exclusive<'_>) -> bool {
        // AcqRel: pairs with the two in `keep_reserve`.
        let reserve = self.kernel.reserve.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !reserve.is_null() {
            // SAFETY: from `keep_reserve`, taken out once.
            drop(unsafe { Box::from_raw(reserve) });
        }
        !reserve.is_null()
    }
}
