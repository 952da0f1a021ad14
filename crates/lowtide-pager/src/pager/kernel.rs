//! The pager's descriptors.

use core::sync::atomic::AtomicPtr;

use alloc::boxed::Box;
use rustix::fd::OwnedFd;

use lowtide_sys::present::Present;
use lowtide_sys::release;
use lowtide_sys::uffd::Uffd;

use crate::mappings::moved::tells_length;

pub(crate) struct Kernel {
    pub(super) uffd: AtomicPtr<Uffd>,
    pub(super) present: AtomicPtr<Present>,
    /// To close for a fork event without free descriptors; null: none.
    pub(super) reserve: AtomicPtr<(OwnedFd, Option<OwnedFd>)>,
    /// Whether the kernel reports the length of a move.
    pub(crate) tells_moved_length: bool,
}

impl Kernel {
    pub(crate) fn new(uffd: Uffd, present: Present) -> Kernel {
        Kernel {
            uffd: AtomicPtr::new(Box::into_raw(Box::new(uffd))),
            present: AtomicPtr::new(Box::into_raw(Box::new(present))),
            reserve: AtomicPtr::new(core::ptr::null_mut()),
            tells_moved_length: tells_length(release::running()),
        }
    }
}
