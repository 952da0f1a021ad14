//! The slots of a process: of each thread, the fault that its signal is about, where the signal itself can't say it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::record::Fault;

/// Threads with slots of their own: of two whose numbers are the same modulo this, one may find the other's fault in it. It then
/// returns, and faults again.
pub const SLOTS: usize = 256;

/// What the programs write of a thread; all zeros at first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slot {
    /// The fault of the last signal, as [`Fault::of_word`] reads it.
    pub signalled: AtomicU64,
    /// Whose it is.
    pub thread: AtomicU32,
    /// The ring of the last record.
    pub ring: AtomicU32,
    /// The fault of the last record.
    pub asked: AtomicU64,
    /// Where the record stands in its ring.
    pub position: AtomicU64,
    /// The page of the fault that its handler left to others; 0: none. The handler writes it, the programs take it back.
    pub declined: AtomicU64,
}

/// Bytes of the map: the slots, and one more, which counts: in `signalled` the records that were lost, in `asked` the events.
pub const SLOTS_BYTES: usize = (SLOTS + 1) * size_of::<Slot>();
/// Bytes of the mapped map.
pub const MAPPED_BYTES: usize = SLOTS_BYTES.next_multiple_of(4096);

/// The slots, by their memory.
#[derive(Debug, Clone, Copy)]
pub struct Slots(NonNull<Slot>);

// SAFETY: an address of memory that does not move, of which atomics are read only.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// # Safety
    /// [`SLOTS_BYTES`] from `start`, which is aligned to 8, can be read, and also written where [`Slots::decline`] is called, for
    /// as long as this or a copy of it lives.
    pub unsafe fn new(start: NonNull<u8>) -> Slots {
        Slots(start.cast())
    }

    /// The fault that the signal is about which thread `thread` handles now: in the handler only, before anything that may
    /// fault. `None`: another thread's signal came meanwhile.
    pub fn signalled(&self, thread: u32) -> Option<Fault> {
        let slot = self.slot(thread as usize % SLOTS);
        // Relaxed: the kernel wrote it in this thread, or a thread with the same slot did.
        let word = slot.signalled.load(Ordering::Relaxed);
        (slot.thread.load(Ordering::Relaxed) == thread).then(|| Fault::of_word(word))
    }

    /// The next fault of thread `thread`, the calling one, at `page` is not told it by the signal but becomes a record: its handler
    /// can't serve it. The page is to be faulted on next; another thread with the same slot may take that away, and then the
    /// signal comes once more.
    pub fn decline(&self, thread: u32, page: usize) {
        // Relaxed: the programs read it in this thread.
        self.slot(thread as usize % SLOTS).declined.store(page as u64, Ordering::Relaxed);
    }

    /// How many events have begun so far, before each can be read from the userfaultfd; wraps.
    pub fn events(&self) -> u64 {
        self.slot(SLOTS).asked.load(Ordering::Acquire)
    }

    /// How many records found their ring full so far.
    pub fn lost(&self) -> u64 {
        self.slot(SLOTS).signalled.load(Ordering::Relaxed)
    }

    fn slot(&self, at: usize) -> &Slot {
        debug_assert!(at <= SLOTS);
        // SAFETY: inside of what the caller of `new` answers for.
        unsafe { self.0.add(at).as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_takes_no_other_threads_fault() {
        let mut memory = vec![0u64; SLOTS_BYTES / 8];
        let (at, thread) = (5 * size_of::<Slot>() / 8, 5 + 3 * SLOTS as u32);
        memory[at] = 0x9001;
        memory[at + 1] = u64::from(thread);
        memory[SLOTS * size_of::<Slot>() / 8] = 12;
        // SAFETY: that memory, which is there until the end of the test.
        let slots = unsafe { Slots::new(NonNull::from(&mut *memory).cast()) };
        assert_eq!(slots.signalled(thread), Some(Fault { page: 0x9000, write: true }));
        assert_eq!((slots.signalled(5), slots.signalled(thread + 1)), (None, None));
        assert_eq!(slots.lost(), 12);
    }
}
