//! A BPF ring buffer of records in shared memory, read by one thread at a time.
//!
//! Mapped, it has [`MAPPED_BYTES`]: a page with the reader's position ([`WRITABLE_BYTES`], the only
//! writable part), a page with the kernel's position, and the records twice in a row, so that each
//! is contiguous.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::record::{RawRecord, Record};

/// Bytes of a ring's records: 512 of them, with headers.
pub const RING_BYTES: usize = 16384;
/// Bytes of a mapped ring.
pub const MAPPED_BYTES: usize = RECORDS + 2 * RING_BYTES;
/// Its leading bytes, which the reader writes.
pub const WRITABLE_BYTES: usize = PAGE;

const PAGE: usize = 4096;
/// Offset of the records; the page before has the kernel's position.
const RECORDS: usize = 2 * PAGE;

/// In a record's length: being written.
const BUSY: u32 = 1 << 31;
/// In a record's length: abandoned.
const DISCARDED: u32 = 1 << 30;
/// The length, and a number for the kernel.
const HEADER: usize = 8;

/// A mapped ring.
#[derive(Debug)]
pub struct Ring {
    /// Bytes taken; the kernel reads it.
    consumer: NonNull<AtomicU64>,
    /// Bytes given; the kernel writes it.
    producer: NonNull<AtomicU64>,
    /// The records, twice.
    data: NonNull<u8>,
}

// SAFETY: an address of fixed memory, and taking needs exclusive access.
unsafe impl Send for Ring {}

impl Ring {
    /// # Safety
    /// While this lives, [`MAPPED_BYTES`] from `start` are a mapped BPF ring buffer with records of
    /// this crate's programs; the first [`WRITABLE_BYTES`] are writable, and only this writes them.
    pub unsafe fn new(start: NonNull<u8>) -> Ring {
        // SAFETY: inside it.
        let [producer, data] = [PAGE, RECORDS].map(|offset| unsafe { start.add(offset) });
        Ring { consumer: start.cast(), producer: producer.cast(), data }
    }

    /// The oldest record; `None`: none, or still being written. When [`crate::slot::Slots::lost`]
    /// grows, threads wait without a record: the userfaultfd must be read.
    pub fn take(&mut self) -> Option<Record> {
        // SAFETY: readable memory, otherwise known only to the kernel, as the caller of `new`
        // promises.
        let (consumer, producer) = unsafe { (self.consumer.as_ref(), self.producer.as_ref()) };
        let mut position = consumer.load(Ordering::Relaxed);
        // Acquire, here and for the length: pair with the kernel's releases, after which the record
        // is complete.
        while position != producer.load(Ordering::Acquire) {
            let at = position as usize & (RING_BYTES - 1);
            // SAFETY: inside the first copy; lengths are aligned to 8.
            let header = unsafe { self.data.add(at) };
            // SAFETY: as above.
            let length = unsafe { header.cast::<AtomicU32>().as_ref() }.load(Ordering::Acquire);
            if length & BUSY != 0 {
                return None;
            }
            let bytes = (length & !DISCARDED) as usize;
            let known = length & DISCARDED == 0 && bytes >= size_of::<RawRecord>();
            // SAFETY: the record is complete, and contiguous with its second copy.
            let raw = known.then(|| unsafe { header.add(HEADER).cast::<RawRecord>().read() });
            position += (HEADER + bytes).next_multiple_of(8) as u64;
            // SeqCst: the kernel wakes waiters only if it sees that all before its record was
            // taken. So this store precedes the next load of the producer's position.
            consumer.store(position, Ordering::SeqCst);
            if let Some(record) = raw.and_then(RawRecord::read) {
                return Some(record);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Fault, Why};

    /// A ring in the kernel's layout.
    struct Made(Box<[AtomicU64]>);

    impl Made {
        fn new(start: u64) -> Made {
            let made = Made((0..MAPPED_BYTES / 8).map(|_| AtomicU64::new(0)).collect());
            for position in [made.consumer(), made.producer()] {
                position.store(start, Ordering::Relaxed);
            }
            made
        }

        fn ring(&self) -> Ring {
            // SAFETY: memory of that layout, which outlives the rings of these tests.
            unsafe { Ring::new(NonNull::from(&*self.0).cast()) }
        }

        fn consumer(&self) -> &AtomicU64 {
            &self.0[0]
        }

        fn producer(&self) -> &AtomicU64 {
            &self.0[4096 / 8]
        }

        fn word(&self, position: u64, word: u64) {
            let at = position as usize & (RING_BYTES - 1);
            for copy in [at, at + RING_BYTES] {
                self.0[(2 * 4096 + copy) / 8].store(word, Ordering::Relaxed);
            }
        }

        fn give(&self, flags: u32, word: u64, thread: u32, why: u32) {
            let position = self.producer().load(Ordering::Relaxed);
            self.word(position, u64::from(24 | flags));
            self.word(position + 8, word);
            self.word(position + 16, u64::from(thread) | u64::from(why) << 32);
            self.word(position + 24, word / 2);
            self.producer().store(position + 32, Ordering::Release);
        }
    }

    #[test]
    fn records_come_in_their_order_and_across_the_end() {
        // A record crosses the end.
        let made = Made::new(3 * RING_BYTES as u64 - 48);
        let mut ring = made.ring();
        assert_eq!(ring.take(), None);
        made.give(0, 0x5001, 7, Why::KernelMode as u32);
        made.give(0, 0x6000, 8, Why::NoStack as u32);
        let first = Record { fault: Fault { page: 0x5000, write: true }, thread: 7, why: Why::KernelMode, stack: 0 };
        let second = Record { fault: Fault { page: 0x6000, write: false }, thread: 8, why: Why::NoStack, stack: 0x3000 };
        assert_eq!([ring.take(), ring.take(), ring.take()], [Some(first), Some(second), None]);
        assert_eq!(made.consumer().load(Ordering::Relaxed), made.producer().load(Ordering::Relaxed));
    }

    #[test]
    fn what_is_being_written_is_waited_for_and_what_was_given_up_is_passed() {
        let made = Made::new(0);
        let mut ring = made.ring();
        made.give(DISCARDED, 0x1000, 1, 0);
        made.give(0, 0x2000, 2, 99);
        made.give(BUSY, 0x3000, 3, 0);
        assert_eq!(ring.take(), None);
        assert_eq!(made.consumer().load(Ordering::Relaxed), 64);
        made.word(64, 24);
        assert_eq!(ring.take().map(|record| record.thread), Some(3));
    }
}
