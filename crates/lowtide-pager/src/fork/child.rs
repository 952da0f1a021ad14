//! Fork, in the child: it takes over its memory.

use core::sync::atomic::Ordering;

use lowtide_core::lock;
use lowtide_core::steps;
use lowtide_core::vm;
use lowtide_sys::Range;
use lowtide_sys::maps::Walk;
use lowtide_sys::uffd::Message;
use lowtide_wire::segment::{Proc, Segment};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::thread::futex;

use super::handover::{CHILDS, Handover};
use crate::mappings::going::Gone;
use crate::pagemap::PageState;
use crate::pager::Pager;
use crate::pages::space::Exclusive;

const PARENT_KILLED: &[u8] = b"the parent was killed while it forked: the child's memory is not whole";
const REFUSED: &[u8] = b"a forked child can't register its memory";

/// What a child needs to take over.
pub struct Inheritance<'a> {
    /// The run.
    pub run: &'static Segment,
    /// This process's place in it.
    pub proc: &'static Proc,
    /// Whether the parent's agent still serves this process, or has let go properly. False: it was
    /// killed, or executed another program.
    pub parent_serves: &'a dyn Fn() -> bool,
    /// Opens one of the parent's swap files: see the store.
    pub reopen: &'a mut dyn FnMut(u8, i32) -> Result<OwnedFd, Errno>,
    /// Whether this process can serve itself.
    pub able: Result<(), Errno>,
}

/// The result for a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenOver {
    /// It serves itself from now on.
    Serves,
    /// It can't, but has all of its memory. The pager must not be used.
    Whole(Errno),
}

impl Pager {
    /// In a forked child, before any other use of the pager: frees what the parent's threads held,
    /// and takes over the store. (Over 70 lines: steps in order, each of which needs the one
    /// before.)
    ///
    /// # Errors
    /// The parent died too early, or the kernel refused to register memory: the child's memory is
    /// not whole.
    ///
    /// # Safety
    /// Only in a child of a process that called [`Pager::announce_fork`], while its host thread
    /// waits, and no other of its threads uses the pager.
    pub unsafe fn take_over(&self, with: Inheritance<'_>) -> Result<TakenOver, &'static [u8]> {
        self.set_proc(with.proc);
        // The parent has reported its own growth; this process has none of it.
        let now = self.accounts.budget.now();
        self.accounts.budget.join(with.run, with.proc);
        self.accounts.budget.measured(now);
        self.forget_operations();
        self.mappings.guards.reset_after_fork();
        self.mappings.removal_calls.reset_after_fork();
        self.mappings.walks.reset_after_fork();
        self.mappings.held.reset_after_fork();
        self.mappings.kept.iter().for_each(|page| page.store(0, Ordering::Relaxed));
        lock::reset_waits();
        steps::taken(steps::Fork::Child);
        let handover = self.handover();
        // SAFETY: no other thread of this process uses the pager, and the parent's operations were
        // paused.
        let has_files = unsafe {
            self.pages.space.reset_after_fork();
            self.reclaim.hand.reset_after_fork();
            self.mappings.order.reset_after_fork();
            self.reclaim.sentinels.reset_after_fork();
            self.pages.map.reset_after_fork();
            self.pages.staging.reset_after_fork();
            self.mappings.order.lock().all_is_certain();
            let lock = self.pages.space.exclusive();
            if handover.claim_references(CHILDS) {
                self.store(&lock).fork_child(with.run.image(with.proc), with.reopen).is_ok()
            } else {
                self.store(&lock).fork_child_whole();
                false
            }
        };
        let means = with.able.and_then(|()| {
            let (uffd, present) = ((self.host.open_uffd)()?, (self.host.open_page_map)()?);
            Ok((uffd, present, Handover::new()?))
        });
        steps::taken(steps::Fork::Child);
        if has_files && means.is_ok() {
            handover.handshake.ready();
        } else {
            handover.handshake.want_all();
        }
        steps::taken(steps::Fork::Child);
        self.wait_for_parent(with.parent_serves)?;
        steps::taken(steps::Fork::Child);
        let (uffd, present, next) = match means {
            Ok(means) => means,
            Err(errno) => {
                self.forget_what_is_out(&self.pages.space.exclusive());
                return Ok(TakenOver::Whole(errno));
            }
        };
        self.reopen(uffd, present);
        {
            let lock = self.pages.space.exclusive();
            self.pages.staging.register(self.uffd()).map_err(|_| REFUSED)?;
            self.hold_forks().map_err(|_| REFUSED)?;
            self.forks.held_back.end(&lock, |event, has_ended| match *event {
                // Else it is the parent's: the call may have begun later.
                Message::Remove { start, end } if has_ended => self.gone(&lock, Range { start, end }, Gone::Already),
                _ => {}
            });
            for event in handover.passed_on() {
                match event {
                    // The waiting thread's: its call is over, so nothing would take marks away.
                    Message::Remove { start, end } if !self.pages.staging.contains(start) => {
                        self.gone(&lock, Range { start, end }, Gone::Already)
                    }
                    _ => self.apply(&lock, &event),
                }
            }
            if !has_files {
                self.forget_what_is_out(&lock);
            }
        }
        self.register_inherited()?;
        steps::taken(steps::Fork::Child);
        // AcqRel: pairs with the Acquire in `handover`.
        let parents = self.forks.handover.swap(next, Ordering::AcqRel);
        // SAFETY: from `Handover::new`; the parent has a mapping of its own, and no thread here
        // uses this one any more: `handover` gives the next.
        unsafe { vm::retire_at(parents.addr()) };
        self.resume();
        Ok(TakenOver::Serves)
    }

    /// In a child without an agent thread: asks the parent for all of its memory, and waits for it.
    /// `parent_serves`: see [`Inheritance`].
    ///
    /// # Errors
    /// The parent died too early.
    pub fn become_whole(&self, parent_serves: &dyn Fn() -> bool) -> Result<(), &'static [u8]> {
        self.handover().handshake.want_all();
        self.wait_for_parent(parent_serves)
    }

    fn wait_for_parent(&self, parent_serves: &dyn Fn() -> bool) -> Result<(), &'static [u8]> {
        let handshake = &self.handover().handshake;
        while !handshake.is_closed() {
            let tick = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let said = handshake.word().load(Ordering::Relaxed);
            if !handshake.is_closed() {
                let _ = futex::wait(handshake.word(), futex::Flags::empty(), said, Some(&tick));
            }
            if !parent_serves() && !handshake.is_closed() {
                return Err(PARENT_KILLED);
            }
        }
        Ok(())
    }

    /// Of a whole child all pages are in memory, and it may have no references to the slots.
    fn forget_what_is_out(&self, lock: &Exclusive<'_>) {
        let mut freer = self.store(lock).freer();
        self.pages.map.each_used(|_, slot| {
            let word = slot.get();
            if matches!(word, PageState::Staged(_) | PageState::Swapped(_) | PageState::Clean(_)) {
                slot.set(PageState::None);
                self.forget(&mut freer, word);
            }
        });
        self.publish_own();
    }

    fn register_inherited(&self) -> Result<(), &'static [u8]> {
        let (mut mappings, mut at) = (self.present().mappings.walk(), 0);
        loop {
            let next = {
                let lock = self.pages.space.shared();
                self.mappings.regions.next(&lock, at)
            };
            let Some(range) = next else { return Ok(()) };
            at = range.end;
            self.register_mapped(&mut mappings, range)?;
        }
    }

    /// Registers what is mapped of a range, and abandons the rest (MADV_DONTFORK, or unmapped too
    /// late for the tables), which would be evicted and never served.
    fn register_mapped(&self, mappings: &mut Walk<'_>, range: Range) -> Result<(), &'static [u8]> {
        let mut at = range.start;
        while at < range.end {
            let next = mappings.next_mapping(at).map_err(|_| REFUSED)?;
            let next = next.filter(|mapping| mapping.range.start < range.end);
            let is_anonymous = next.is_some_and(|mapping| mapping.is_anonymous);
            let mapping = next.map_or(Range { start: range.end, end: range.end }, |mapping| mapping.range);
            let mapped = Range { start: mapping.start.max(at), end: mapping.end.min(range.end) };
            if at < mapped.start {
                self.abandon(&self.pages.space.exclusive(), Range { start: at, end: mapped.start });
            }
            if mapped.start < mapped.end && !is_anonymous {
                self.abandon(&self.pages.space.exclusive(), mapped);
            } else if mapped.start < mapped.end {
                // With its growth: else the kernel would split it, and refuse to move it. But no
                // page may be lost for that.
                let done = match self.register_unless_own(Range { end: mapping.end, ..mapped }) {
                    Ok(Some(())) => Ok(Some(())),
                    _ => self.register_unless_own(mapped),
                };
                match done {
                    // Writes are not watched any more where the zero page was mapped.
                    Ok(Some(())) if self.protects() => {
                        self.needs_sentinels(&self.pages.space.exclusive(), mapped);
                    }
                    Ok(Some(())) => {}
                    // Something else was mapped there, such as a stack of a lowtide thread.
                    Ok(None) | Err(Errno::INVAL) => self.abandon(&self.pages.space.exclusive(), mapped),
                    Err(_) => return Err(REFUSED),
                }
            }
            at = mapped.end;
        }
        Ok(())
    }

    /// None: lowtide's own memory is there.
    fn register_unless_own(&self, range: Range) -> Result<Option<()>, Errno> {
        // SAFETY: this child's handlers serve every fault.
        let register = || unsafe { self.register_with_kernel(range) };
        vm::unless_own(range.start, range.end, register).transpose()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_child_does_not_wait_for_operations_of_its_parent() {
        let Some(pager) = crate::mappings::events::tests::pager() else { return };
        core::mem::forget(pager.enter());
        pager.forget_operations();
        let waited = std::time::Instant::now();
        pager.pause();
        assert!(waited.elapsed().as_secs() < 60);
    }
}
