//! Holds a thread that forks by a raw system call until its child has all of its memory: else the
//! parent could end meanwhile, and the child would read zeros.
//!
//! The kernel reports a fork to each userfaultfd with memory in the process, in the order of their
//! first mappings, before the child is visible; the thread waits for each read. So a page behind
//! all of staging is registered with a second userfaultfd, which is read when the child is whole.
//! The thread of an announced fork waits itself, and is let go at once.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use alloc::boxed::Box;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use lowtide_sys::uffd::{Message, Standing, Uffd, Watched};

use crate::pager::Pager;
use crate::pages::space::Exclusive;

#[derive(Default)]
pub(crate) struct Hold {
    uffd: AtomicPtr<Uffd>,
    /// First reports without the second. Changed under the exclusive space lock, or before threads
    /// fork.
    owed: AtomicU32,
}

impl Hold {
    fn uffd(&self) -> Option<&Uffd> {
        // Acquire: pairs with the Release in `hold_forks`.
        // SAFETY: from a box that is freed with `self` only.
        unsafe { self.uffd.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn is_owed(&self) -> bool {
        self.owed.load(Ordering::Relaxed) > 0
    }
}

impl Pager {
    /// From now on forking threads are held. In a child this replaces the parent's userfaultfd,
    /// which is leaked.
    ///
    /// # Errors
    /// The kernel's. Then nothing may be evicted: a child could read zeros.
    pub fn hold_forks(&self) -> Result<(), Errno> {
        self.forks.hold.owed.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquire in `uffd`.
        self.forks.hold.uffd.store(ptr::null_mut(), Ordering::Release);
        let uffd = (self.host.open_uffd)()?;
        // SAFETY: no page needs serving there.
        unsafe { uffd.register(self.pages.staging.page_behind(), PAGE_SIZE, Watched::Nothing) }?;
        // Release: as above.
        self.forks.hold.uffd.store(Box::into_raw(Box::new(uffd)), Ordering::Release);
        Ok(())
    }

    /// After a failed [`Pager::activate`] or `hold_forks`: unregisters staging. No handler may run.
    pub fn deactivate(&self) {
        self.pages.staging.unregister_all(self.uffd());
    }

    /// Releases threads whose fork was under way during [`Pager::deactivate`], which the kernel
    /// reports all the same.
    pub fn release_forks(&self) {
        let lock = self.pages.space.exclusive();
        while self.uffd().is_readable() {
            if let Err(Errno::MFILE | Errno::NFILE) = self.uffd().read()
                && !self.close_reserve(&lock)
            {
                return;
            }
        }
    }

    /// The first report of a fork was read. False: its thread is not held.
    pub(crate) fn will_report_again(&self, _: &Exclusive<'_>, child: &Uffd) -> bool {
        let will =
            self.forks.hold.uffd().is_some() && child.standing(self.pages.staging.page_behind()) != Standing::NotRegistered;
        self.forks.hold.owed.fetch_add(u32::from(will), Ordering::Relaxed);
        will
    }

    /// Lets the threads of reported forks go; waits up to `ms` milliseconds for each second report.
    /// Their children are whole or announced, or the lock is not released.
    pub(crate) fn let_be_born(&self, lock: &mut Exclusive<'_>, ms: i32) {
        if let Some(hold) = self.forks.hold.uffd() {
            while self.forks.hold.is_owed() && lock.while_free(|| hold.wait_readable(ms)) && self.read_hold(lock, hold) {}
        }
        self.look_whether_born();
    }

    fn look_whether_born(&self) {
        if !self.forks.hold.is_owed() {
            self.are_born();
        }
    }

    /// The same by the reclaimer, in case all handlers sleep. Also corrects `owed`: a killed thread
    /// sends no second report.
    pub fn let_late_children_be_born(&self) {
        let Some(hold) = self.forks.hold.uffd() else { return };
        // From the cloning until the thread runs again.
        let is_awaited = || hold.standing(self.pages.staging.page_behind()) == Standing::Changing;
        if !is_awaited() && !self.forks.hold.is_owed() {
            return;
        }
        let lock = self.pages.space.exclusive();
        if hold.is_readable() {
            self.read_hold(&lock, hold);
        } else if !is_awaited() {
            self.forks.hold.owed.store(0, Ordering::Relaxed);
        }
        self.look_whether_born();
    }

    /// False: nothing to read, or no descriptor.
    fn read_hold(&self, lock: &Exclusive<'_>, hold: &Uffd) -> bool {
        let (mut read, mut others) = (0, 0);
        loop {
            match hold.read() {
                Ok(Message::Fork(_)) => read += 1,
                Ok(_) => others += 1,
                Err(Errno::MFILE | Errno::NFILE) if self.close_reserve(lock) => {}
                Err(_) => break,
            }
        }
        self.keep_reserve();
        let owed = self.forks.hold.owed.load(Ordering::Relaxed);
        self.forks.hold.owed.store(owed.saturating_sub(read), Ordering::Relaxed);
        self.mappings.events_read.fetch_add(u64::from(read) + others, Ordering::Relaxed);
        read > 0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let uffd = self.uffd.swap(ptr::null_mut(), Ordering::AcqRel);
        if !uffd.is_null() {
            // SAFETY: from `hold_forks`, and no other thread has the pager any more.
            drop(unsafe { Box::from_raw(uffd) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crash dumper, or a garbage collector that scans everything.
    #[test]
    fn whoever_touches_the_page_goes_on() {
        let Some(pager) = crate::mappings::events::tests::pager() else { return };
        pager.hold_forks().unwrap();
        let page = pager.pages.staging.page_behind();
        assert_eq!(pager.uffd().standing(page), Standing::Registered);
        // SAFETY: a page of the pager's that it does not use.
        unsafe {
            assert_eq!((page as *const u8).read_volatile(), 0);
            (page as *mut u8).write_volatile(1);
        }
        assert!(!pager.forks.hold.uffd().unwrap().is_readable(), "nothing is told of that");
    }

    #[test]
    fn whoever_drops_the_page_goes_on() {
        let Some(pager) = crate::mappings::events::tests::pager() else { return };
        pager.hold_forks().unwrap();
        pager.forks.hold.owed.store(1, Ordering::Relaxed);
        let page = pager.pages.staging.page_behind();
        // SAFETY: a page of the pager's that it does not use.
        let drops = move || unsafe {
            rustix::mm::madvise(page as *mut _, PAGE_SIZE, rustix::mm::Advice::LinuxDontNeed).unwrap();
        };
        let thread = std::thread::spawn(drops);
        while !thread.is_finished() {
            pager.let_late_children_be_born();
        }
        pager.let_late_children_be_born();
        assert!(!pager.forks.hold.is_owed());
    }

    #[test]
    fn without_a_second_userfaultfd_no_report_is_waited_for() {
        let Some(mut pager) = crate::mappings::events::tests::pager() else { return };
        pager.host.open_uffd = || Err(Errno::MFILE);
        assert_eq!(pager.hold_forks(), Err(Errno::MFILE));
        let mut lock = pager.pages.space.exclusive();
        assert!(!pager.will_report_again(&lock, pager.uffd()) && !pager.forks.hold.is_owed());
        pager.let_be_born(&mut lock, 60_000);
    }
}
