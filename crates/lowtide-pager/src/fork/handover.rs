//! The memory that a forking parent and its child share until the child serves itself.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lowtide_core::handshake::Handshake;
use lowtide_core::vm::{self, OnFork};
use lowtide_sys::uffd::Message;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::held_back::MOST;
use crate::pager::Pager;

/// The child's, and its parent's from before the cloning.
const PASSED: usize = 120 + MOST;

/// The memory that a forking parent and its child share.
#[repr(C)]
pub struct Handover {
    pub(super) handshake: Handshake,
    /// UNCLAIMED, then CHILDS or UNDONE.
    references: AtomicU32,
    passed: AtomicU32,
    events: [[AtomicU64; 4]; PASSED],
}

const UNCLAIMED: u32 = 0;
/// If the child is killed just then, they stay until its parent ends.
pub(super) const CHILDS: u32 = 1;
/// The child is whole, and the parent takes them back. The child must not try: the parent may claim
/// them for its next child.
pub(super) const UNDONE: u32 = 2;

impl Handover {
    pub(crate) fn new() -> Result<*mut Handover, Errno> {
        Ok(vm::map(size_of::<Handover>(), OnFork::Share)?.as_ptr().cast())
    }

    /// Replaces the page at `at`: the last child keeps the old one, and later children must not
    /// read what it writes.
    ///
    /// # Safety
    /// `at` comes from [`Handover::new`], and nobody uses it now.
    pub(super) unsafe fn renew(at: *mut Handover) -> Result<(), Errno> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED);
        // SAFETY: a mapping of lowtide's own, of this size, without references, as the caller
        // guarantees.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), size_of::<Handover>(), prot, flags) }.map(drop)
    }

    /// False: decided before.
    pub(super) fn claim_references(&self, by: u32) -> bool {
        // AcqRel, and Acquire of a failure: pairs with itself in the other process. A child that
        // reads UNDONE finds its memory filled.
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
        // Acquire: pairs with the Release in `pass`, after the event was written.
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
        // Acquire: pairs with the Release in `take_over`, the only other store.
        // SAFETY: a mapping made by `Handover::new`, retired only after `take_over` has replaced
        // it, when no thread uses the old one; all its fields are atomics.
        unsafe { &*self.forks.handover.load(Ordering::Acquire) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_core::vm::PAGE_SIZE;

    fn childs(at: *mut Handover) -> &'static Handover {
        // SAFETY: a length of 0 maps the same shared pages again; it stays until the test ends.
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
