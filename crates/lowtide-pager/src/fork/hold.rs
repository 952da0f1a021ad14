//! Holds a thread that forks by a raw system call until its child has all of its memory. Else the parent could end, or execute
//! another program, while that is brought in, and what is missing would be zeros to the child.
//!
//! The kernel reports a fork to each userfaultfd that has memory of the process, in the order of the first mappings that they
//! have, and before the child is to be seen anywhere; the thread waits for each report to be read. So a page that lies behind
//! the staging area is registered with a second userfaultfd, which is read when the child is whole. Whoever is killed meanwhile
//! has no child. The thread of an announced fork waits for its child by itself, and is let go at once.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use alloc::boxed::Box;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::mappings::space::Exclusive;
use crate::pager::Pager;
use crate::sys::uffd::{Message, Standing, Uffd, Watched};

/// How long a monitor waits for second reports, in milliseconds: a thread that forks needs a CPU until then. If it takes longer,
/// the monitors look again at each of their turns.
pub(crate) const SOON_MS: i32 = 5;

/// The second userfaultfd, and what it is to tell.
#[derive(Default)]
pub(crate) struct Hold {
    /// Null: there is none.
    uffd: AtomicPtr<Uffd>,
    /// Forks whose first report was read and whose second was not. Changed with the space lock held alone.
    owed: AtomicU32,
}

impl Hold {
    fn uffd(&self) -> Option<&Uffd> {
        // Acquire: pairs with the Release in `hold_forks`.
        // SAFETY: from a box that is never freed but with this.
        unsafe { self.uffd.load(Ordering::Acquire).as_ref() }
    }

    /// Whether second reports are still to come.
    pub(crate) fn is_owed(&self) -> bool {
        self.owed.load(Ordering::Relaxed) > 0
    }
}

impl Pager {
    /// From now on threads that fork are held. Where no userfaultfd is to be had for that, they are not. In a forked child it
    /// takes the place of the parent's, which is leaked: its number means nothing here.
    pub fn hold_forks(&self) {
        let made = (self.host.open_uffd)().and_then(|uffd| {
            // SAFETY: no page is to be served there.
            unsafe { uffd.register(self.staging.page_behind(), PAGE_SIZE, Watched::Nothing) }.map(|()| uffd)
        });
        self.hold.owed.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquire in `uffd`.
        self.hold.uffd.store(made.map_or(ptr::null_mut(), |uffd| Box::into_raw(Box::new(uffd))), Ordering::Release);
    }

    /// The first report of a fork was read. False: there will be no second one, for which its thread waits.
    pub(crate) fn will_report_again(&self, _: &Exclusive<'_>, child: &Uffd) -> bool {
        // As it was when the memory was cloned.
        let will = self.hold.uffd().is_some() && child.standing(self.staging.page_behind()) != Standing::NotRegistered;
        self.hold.owed.fetch_add(u32::from(will), Ordering::Relaxed);
        will
    }

    /// Lets the threads go whose forks were reported, and waits up to `ms` milliseconds for each that is still to say that it
    /// waits. All their children are whole, or announced; else the lock is not let go of.
    pub(crate) fn let_be_born(&self, lock: &mut Exclusive<'_>, ms: i32) {
        if let Some(hold) = self.hold.uffd() {
            while self.hold.is_owed() && lock.while_free(|| hold.wait_readable(ms)) && self.read_hold(lock, hold) {}
        }
        self.look_whether_born();
    }

    fn look_whether_born(&self) {
        if !self.hold.is_owed() {
            self.are_born();
        }
    }

    /// By the reclaimer, now and then: the same, where all monitors sleep. And what is owed is put right: who was killed between
    /// its two reports does not send the second.
    pub fn let_late_children_be_born(&self) {
        let Some(hold) = self.hold.uffd() else { return };
        // From the cloning of the memory on, until the second report was read and its thread has run.
        let is_awaited = || hold.standing(self.staging.page_behind()) == Standing::Changing;
        if !is_awaited() && !self.hold.is_owed() {
            return;
        }
        let lock = self.space.exclusive();
        if hold.is_readable() {
            self.read_hold(&lock, hold);
        } else if !is_awaited() {
            self.hold.owed.store(0, Ordering::Relaxed);
        }
        self.look_whether_born();
    }

    /// False: there was nothing to read, or no descriptor for it.
    fn read_hold(&self, lock: &Exclusive<'_>, hold: &Uffd) -> bool {
        let (mut read, mut others) = (0, 0);
        loop {
            match hold.read() {
                // The child's, for the page of which nothing is told: it is closed.
                Ok(Message::Fork(_)) => read += 1,
                // Somebody has unmapped that page, say: it goes on.
                Ok(_) => others += 1,
                Err(Errno::MFILE | Errno::NFILE) if self.close_reserve(lock) => {}
                Err(_) => break,
            }
        }
        self.keep_reserve();
        let owed = self.hold.owed.load(Ordering::Relaxed);
        self.hold.owed.store(owed.saturating_sub(read), Ordering::Relaxed);
        self.events_read.fetch_add(u64::from(read) + others, Ordering::Relaxed);
        read > 0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let uffd = self.uffd.swap(ptr::null_mut(), Ordering::AcqRel);
        if !uffd.is_null() {
            // SAFETY: from `hold_forks`, and nobody else has the pager any more.
            drop(unsafe { Box::from_raw(uffd) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crash dumper, or a garbage collector that looks everywhere.
    #[test]
    fn whoever_touches_the_page_goes_on() {
        let Some(pager) = crate::mappings::events::tests::pager() else { return };
        pager.hold_forks();
        let page = pager.staging.page_behind();
        assert_eq!(pager.uffd().standing(page), Standing::Registered);
        // SAFETY: a page of the pager's that it does not use.
        unsafe {
            assert_eq!((page as *const u8).read_volatile(), 0);
            (page as *mut u8).write_volatile(1);
        }
        assert!(!pager.hold.uffd().unwrap().is_readable(), "nothing is told of that");
    }

    /// It is let go, and so is who waits for a report of somebody who was killed.
    #[test]
    fn whoever_drops_the_page_goes_on() {
        let Some(pager) = crate::mappings::events::tests::pager() else { return };
        pager.hold_forks();
        pager.hold.owed.store(1, Ordering::Relaxed);
        let page = pager.staging.page_behind();
        // SAFETY: a page of the pager's that it does not use.
        let drops = move || unsafe {
            rustix::mm::madvise(page as *mut _, PAGE_SIZE, rustix::mm::Advice::LinuxDontNeed).unwrap();
        };
        let thread = std::thread::spawn(drops);
        while !thread.is_finished() {
            pager.let_late_children_be_born();
        }
        pager.let_late_children_be_born();
        assert!(!pager.hold.is_owed());
    }

    #[test]
    fn without_a_second_userfaultfd_no_report_is_waited_for() {
        let Some(mut pager) = crate::mappings::events::tests::pager() else { return };
        pager.host.open_uffd = || Err(Errno::MFILE);
        pager.hold_forks();
        let mut lock = pager.space.exclusive();
        assert!(!pager.will_report_again(&lock, pager.uffd()) && !pager.hold.is_owed());
        pager.let_be_born(&mut lock, 60_000);
    }
}
