//! The memory that a forking parent and its child share: what the one tells the other until the child serves itself.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lowtide_core::handshake::Handshake;
use lowtide_core::vm::{self, OnFork};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::held_back::MOST;
use crate::pager::Pager;
use crate::sys::uffd::Message;

/// Events that can be passed on to the child: its own, and its parent's that came before the cloning.
const PASSED: usize = 120 + MOST;

/// The memory that a forking parent and its child share.
#[repr(C)]
pub struct Handover {
    pub(super) handshake: Handshake,
    /// What becomes of the references that were added for the child: UNCLAIMED, then CHILDS or UNDONE.
    references: AtomicU32,
    passed: AtomicU32,
    events: [[AtomicU64; 4]; PASSED],
}

/// The child has not come so far.
const UNCLAIMED: u32 = 0;
/// The child makes them its own. (If it is killed just then, they stay until its parent ends.)
pub(super) const CHILDS: u32 = 1;
/// The child is whole, and the parent has taken them back. Or it is about to: the parent may fork again and claim the same for
/// another child, so the child must not even try.
pub(super) const UNDONE: u32 = 2;

impl Handover {
    /// A fresh page, for the next fork of this process.
    pub(crate) fn new() -> Result<*mut Handover, Errno> {
        Ok(vm::map(size_of::<Handover>(), OnFork::Share)?.as_ptr().cast())
    }

    /// Puts a fresh page in the place of the one that is at `at`. The child of the last fork keeps that one, and what it writes
    /// there no other child must believe.
    ///
    /// # Safety
    /// `at` comes from [`Handover::new`], and nobody looks at it now.
    pub(super) unsafe fn renew(at: *mut Handover) -> Result<(), Errno> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED);
        // SAFETY: replaces a mapping of lowtide's own, of this size, to which the caller says nobody refers.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), size_of::<Handover>(), prot, flags) }.map(drop)
    }

    /// Decides what becomes of the child's references; false: that has been decided.
    pub(super) fn claim_references(&self, by: u32) -> bool {
        // AcqRel, and Acquire of a failure: pairs with itself in the other process. A child that finds UNDONE finds its memory
        // filled.
        self.references.compare_exchange(UNCLAIMED, by, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(super) fn pass(&self, event: [u64; 4]) -> bool {
        let i = self.passed.load(Ordering::Relaxed) as usize;
        let Some(slot) = self.events.get(i) else { return false };
        for (word, value) in slot.iter().zip(event) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `passed_on`.
        self.passed.store(i as u32 + 1, Ordering::Release);
        true
    }

    pub(super) fn passed_on(&self) -> impl Iterator<Item = Message> + '_ {
        // Acquire: pairs with the Release in `pass`, before which the event was written.
        let n = self.passed.load(Ordering::Acquire) as usize;
        self.events[..n.min(PASSED)].iter().filter_map(|slot| {
            let [kind, a, b, c] = slot.each_ref().map(|w| w.load(Ordering::Relaxed) as usize);
            match kind {
                1 => Some(Message::Unmap { start: a, end: b }),
                2 => Some(Message::Remove { start: a, end: b }),
                3 => Some(Message::Remap { from: a, to: b, len: c }),
                _ => None,
            }
        })
    }
}

impl Pager {
    pub(super) fn handover(&self) -> &Handover {
        // Acquire: pairs with the Release in `take_over`, the only place where there comes to be another one.
        // SAFETY: a mapping made by `Handover::new`, never unmapped; all its fields are atomics.
        unsafe { &*self.handover.load(Ordering::Acquire) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_core::vm::PAGE_SIZE;

    /// A second mapping of the same page, as the child of the last fork has it.
    fn childs(at: *mut Handover) -> &'static Handover {
        // SAFETY: of a shared mapping, a length of 0 makes another one of the same pages; it stays until the test ends.
        unsafe { &*rustix::mm::mremap(at.cast(), 0, PAGE_SIZE, rustix::mm::MremapFlags::MAYMOVE).unwrap().cast() }
    }

    #[test]
    fn what_the_child_of_an_earlier_fork_writes_no_later_one_sees() {
        let at = Handover::new().unwrap();
        // SAFETY: lives until the test ends; all its fields are atomics.
        let mine = unsafe { &*at };
        let earlier = childs(at);
        earlier.handshake.ready();
        assert!(mine.handshake.is_ready(), "the page is shared");
        // SAFETY: nobody else looks at it.
        unsafe { Handover::renew(at) }.unwrap();
        assert!(earlier.pass([1, 0x1000, 0x2000, 0]));
        earlier.handshake.close();
        assert_eq!((mine.handshake.has_just_begun(), mine.passed_on().count()), (true, 0));
        let later = childs(at);
        assert_eq!((later.handshake.has_just_begun(), later.passed_on().count()), (true, 0));
    }
}
