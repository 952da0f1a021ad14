//! Holds a thread that forks by a raw system call until its child has all of its memory. Else the parent could end, or execute
//! another program, while that is brought in, and what is missing would be zeros to the child.
//!
//! The kernel reports a fork to each userfaultfd that has memory of the process, in the order of that memory, and before the
//! child is to be seen anywhere; the thread waits for each report to be read. So a page that lies behind the staging area is
//! registered with a second userfaultfd, which is read when the child is whole. Whoever is killed meanwhile has no child.
//!
//! A fork that is announced waits for its child by itself. That page is not registered meanwhile: a second report would cost
//! more than to take it out and put it back.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use alloc::boxed::Box;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::mappings::space::Exclusive;
use crate::pager::Pager;
use crate::sys::uffd::{Uffd, Watched};

/// How long a monitor waits for the second report, in milliseconds: the thread that forks needs a CPU until then. If it takes
/// longer, the reclaimer reads it.
const SOON_MS: i32 = 5;

/// The second userfaultfd; null: there is none.
#[derive(Default)]
pub(crate) struct Hold(AtomicPtr<Uffd>);

impl Hold {
    fn uffd(&self) -> Option<&Uffd> {
        // Acquire: pairs with the Release in `hold_forks_by`.
        // SAFETY: from a box that is never freed but with this.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

impl Pager {
    /// From now on forks that are not announced are held. Before memory is adopted.
    ///
    /// # Errors
    /// Those of making a userfaultfd and of registering.
    pub fn hold_forks(&self) -> Result<(), Errno> {
        self.hold_forks_by((self.host.open_uffd)()?)
    }

    /// The same by a userfaultfd that is there. In a forked child, too: the parent's is leaked, for its number means nothing
    /// here.
    pub(super) fn hold_forks_by(&self, uffd: Uffd) -> Result<(), Errno> {
        self.register_hold(&uffd)?;
        // Release: pairs with the Acquire in `uffd`.
        self.hold.0.store(Box::into_raw(Box::new(uffd)), Ordering::Release);
        Ok(())
    }

    fn register_hold(&self, uffd: &Uffd) -> Result<(), Errno> {
        // SAFETY: nobody ever touches that page.
        unsafe { uffd.register(self.staging.page_behind(), PAGE_SIZE, Watched::Missing) }
    }

    /// The next fork is an announced one.
    pub(super) fn hold_no_fork(&self) {
        if let Some(hold) = self.hold.uffd() {
            // SAFETY: nobody ever touches that page. (If it fails, the announced fork is held as others are, until the reclaimer
            // looks.)
            let _ = unsafe { hold.unregister(self.staging.page_behind(), PAGE_SIZE) };
        }
    }

    /// It is over.
    pub(super) fn hold_forks_again(&self) {
        // The page is a mapping by itself, registered or not, so there is nothing that the kernel could lack.
        if let Some(hold) = self.hold.uffd()
            && self.register_hold(hold).is_err()
        {
            (self.host.fatal)(b"internal error: a page that was registered can't be registered again");
        }
    }

    /// All children are whole of which the reports were read: lets the threads go that have forked them.
    pub(crate) fn let_be_born(&self, lock: &Exclusive<'_>) {
        if let Some(hold) = self.hold.uffd()
            && hold.wait_readable(SOON_MS)
        {
            self.read_hold(lock, hold);
        }
    }

    /// Lets threads go whose fork has been reported, and whose report came late.
    pub fn let_late_children_be_born(&self) {
        if let Some(hold) = self.hold.uffd()
            && hold.is_readable()
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

impl Drop for Hold {
    fn drop(&mut self) {
        let uffd = self.0.swap(ptr::null_mut(), Ordering::AcqRel);
        if !uffd.is_null() {
            // SAFETY: from `hold_forks_by`, and nobody else has the pager any more.
            drop(unsafe { Box::from_raw(uffd) });
        }
    }
}
