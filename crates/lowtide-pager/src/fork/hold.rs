//! Holds a thread that forks by a raw system call until its child has all of its memory. Else the parent could end, or execute
//! another program, while that is brought in, and what is missing would be zeros to the child.
//!
//! The kernel reports a fork to each userfaultfd that has memory of the process, in the order of that memory, and before the
//! child is to be seen anywhere; the thread waits for each report to be read. So a page that lies behind the staging area is
//! registered with a second userfaultfd, which is read when the child is whole. Whoever is killed meanwhile has no child.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use alloc::boxed::Box;
use lowtide_core::vm::PAGE_SIZE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::mappings::space::Exclusive;
use crate::pager::Pager;
use crate::sys::uffd::{Uffd, Watched};

/// How long a monitor waits for the second report: the thread that forks needs a CPU until then. If it takes longer, the
/// reclaimer reads it.
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The second userfaultfd; null: there is none.
#[derive(Default)]
pub(crate) struct Hold(AtomicPtr<Uffd>);

impl Hold {
    fn uffd(&self) -> Option<&Uffd> {
        // Acquire: pairs with the Release in `begin`.
        // SAFETY: set once from a box that is never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

impl Pager {
    /// Before memory is registered, in a process whose forks are not announced.
    ///
    /// # Errors
    /// Those of making a userfaultfd and of registering.
    pub(crate) fn hold_forks(&self) -> Result<(), Errno> {
        let uffd = (self.host.open_uffd)()?;
        // SAFETY: nobody ever touches that page.
        unsafe { uffd.register(self.staging.page_behind(), PAGE_SIZE, Watched::Missing)? };
        // Release: pairs with the Acquire in `uffd`.
        self.hold.0.store(Box::into_raw(Box::new(uffd)), Ordering::Release);
        Ok(())
    }

    /// The child of the fork whose event has been read is whole.
    pub(super) fn let_be_born(&self, lock: &Exclusive<'_>) {
        if let Some(hold) = self.hold.uffd()
            && is_readable(hold, &SOON)
        {
            self.read_hold(lock, hold);
        }
    }

    /// Lets threads go whose fork has been reported, and whose report came late.
    pub fn let_late_children_be_born(&self) {
        if let Some(hold) = self.hold.uffd()
            && is_readable(hold, &NOW)
        {
            // With the lock: a monitor may be at work for the child.
            let lock = self.space.exclusive();
            self.read_hold(&lock, hold);
        }
    }

    fn read_hold(&self, lock: &Exclusive<'_>, hold: &Uffd) {
        loop {
            match hold.read() {
                // The child's, for the page that nobody touches: it is closed.
                Ok(_) => {}
                Err(Errno::MFILE | Errno::NFILE) if self.close_reserve(lock) => {}
                Err(_) => break,
            }
        }
        self.keep_reserve();
    }
}

fn is_readable(hold: &Uffd, within: &Timespec) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(hold.as_fd(), PollFlags::IN)], Some(within)).is_ok_and(|ready| ready > 0)
}

impl Drop for Hold {
    fn drop(&mut self) {
        let uffd = self.0.swap(ptr::null_mut(), Ordering::AcqRel);
        if !uffd.is_null() {
            // SAFETY: from `hold_forks`, and nobody else has the pager any more.
            drop(unsafe { Box::from_raw(uffd) });
        }
    }
}
