//! A process's slots: each thread's fault, if the signal itself can't carry it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::record::Fault;

/// Slots. Threads with the same id modulo this share one: a thread that finds another's fault
/// returns and faults again.
pub const SLOTS: usize = 256;

/// Written by the programs; zeros at first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slot {
    /// The last signal's fault, for [`Fault::of_word`].
    pub signalled: AtomicU64,
    pub thread: AtomicU32,
    /// Of the last record.
    pub ring: AtomicU32,
    /// The last record's fault.
    pub asked: AtomicU64,
    /// The last record's position in its ring.
    pub position: AtomicU64,
    /// The page that the handler declined, or 0. The handler writes it, the programs reset it.
    pub declined: AtomicU64,
}

/// Bytes of the map. An extra slot counts lost records in `signalled` and events in `asked`.
pub const SLOTS_BYTES: usize = (SLOTS + 1) * size_of::<Slot>();
/// Bytes of the mapping.
pub const MAPPED_BYTES: usize = SLOTS_BYTES.next_multiple_of(4096);

/// A process's mapped slots.
#[derive(Debug, Clone, Copy)]
pub struct Slots(NonNull<Slot>);

// SAFETY: an address of fixed memory, of which only atomics are read.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// # Safety
    /// [`SLOTS_BYTES`] from `start`, aligned to 8, are readable, and writable for
    /// [`Slots::decline`], while this or a copy lives.
    pub unsafe fn new(start: NonNull<u8>) -> Slots {
        Slots(start.cast())
    }

    /// The fault of the signal that `thread` handles. In the handler only, before anything that may
    /// fault. `None`: another thread's signal has replaced it.
    pub fn signalled(&self, thread: u32) -> Option<Fault> {
        let slot = self.slot(thread as usize % SLOTS);
        // Relaxed: the kernel wrote it in this thread, or in one with the same slot.
        let word = slot.signalled.load(Ordering::Relaxed);
        (slot.thread.load(Ordering::Relaxed) == thread).then(|| Fault::of_word(word))
    }

    /// The calling thread's next fault, which must be at `page`, becomes a record instead of a
    /// signal. Another thread with the same slot may undo this: then the signal repeats.
    pub fn decline(&self, thread: u32, page: usize) {
        // Relaxed: the programs read it in this thread.
        self.slot(thread as usize % SLOTS).declined.store(page as u64, Ordering::Relaxed);
    }

    /// Events begun so far, each counted before it can be read from the userfaultfd; wraps.
    pub fn events(&self) -> u64 {
        self.slot(SLOTS).asked.load(Ordering::Acquire)
    }

    /// Records lost to a full ring so far.
    pub fn lost(&self) -> u64 {
        self.slot(SLOTS).signalled.load(Ordering::Relaxed)
    }

    fn slot(&self, at: usize) -> &Slot {
        debug_assert!(at <= SLOTS);
        // SAFETY: inside the memory promised to `new`.
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
        // SAFETY: that memory outlives the slots.
        let slots = unsafe { Slots::new(NonNull::from(&mut *memory).cast()) };
        assert_eq!(slots.signalled(thread), Some(Fault { page: 0x9000, write: true }));
        assert_eq!((slots.signalled(5), slots.signalled(thread + 1)), (None, None));
        assert_eq!(slots.lost(), 12);
    }
}
