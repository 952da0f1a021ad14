//! A ring of records, read from the memory that the kernel shares: a BPF ring buffer, of which one thread at a time takes.
//!
//! Mapped, it is [`MAPPED_BYTES`] long: a page with the position of who reads ([`WRITABLE_BYTES`], all that may be writable), a page
//! with the kernel's position, and the records, twice in a row, so that one at the end is in one piece.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::record::{RawRecord, Record};

/// Bytes of a ring's records. With their headers 512 of them fit.
pub const RING_BYTES: usize = 16384;
/// Bytes of a mapped ring.
pub const MAPPED_BYTES: usize = RECORDS + 2 * RING_BYTES;
/// Bytes of it, from its start, that who reads writes.
pub const WRITABLE_BYTES: usize = PAGE;

const PAGE: usize = 4096;
/// Where the records are in a mapped ring; the page before has the kernel's position.
const RECORDS: usize = 2 * PAGE;

/// Of a record's length: it is being written.
const BUSY: u32 = 1 << 31;
/// Of a record's length: it was given up.
const DISCARDED: u32 = 1 << 30;
/// The length, and a number that only the kernel uses.
const HEADER: usize = 8;

/// Where a ring's memory is.
#[derive(Debug)]
pub struct Ring {
    /// How many bytes were taken; the kernel reads it.
    consumer: NonNull<AtomicU64>,
    /// How many bytes were given; the kernel writes it.
    producer: NonNull<AtomicU64>,
    /// The records, twice.
    data: NonNull<u8>,
}

// SAFETY: it is an address of memory that does not move, and to take wants it exclusively.
unsafe impl Send for Ring {}

impl Ring {
    /// # Safety
    /// For as long as this lives: [`MAPPED_BYTES`] from `start` are a mapped BPF ring buffer whose records the programs of this
    /// crate write, of which the first [`WRITABLE_BYTES`] can be written, and nobody else does.
    pub unsafe fn new(start: NonNull<u8>) -> Ring {
        // SAFETY: inside of that.
        let [producer, data] = [PAGE, RECORDS].map(|offset| unsafe { start.add(offset) });
        Ring { consumer: start.cast(), producer: producer.cast(), data }
    }

    /// The oldest record; `None` if there is none, or if it is still being written. Where [`crate::slot::Slots::lost`] grows,
    /// threads wait of which no ring says anything: the userfaultfd must be read.
    pub fn take(&mut self) -> Option<Record> {
        // SAFETY: memory that can be read, and of which only the kernel knows otherwise, says the caller of `new`.
        let (consumer, producer) = unsafe { (self.consumer.as_ref(), self.producer.as_ref()) };
        let mut position = consumer.load(Ordering::Relaxed);
        // Acquire, here and of the length: pair with the kernel's releases, behind which the record is complete.
        while position != producer.load(Ordering::Acquire) {
            let at = position as usize & (RING_BYTES - 1);
            // SAFETY: inside the first copy of the records; lengths are aligned to 8.
            let header = unsafe { self.data.add(at) };
            // SAFETY: as above.
            let length = unsafe { header.cast::<AtomicU32>().as_ref() }.load(Ordering::Acquire);
            if length & BUSY != 0 {
                return None;
            }
            let bytes = (length & !DISCARDED) as usize;
            let known = length & DISCARDED == 0 && bytes >= size_of::<RawRecord>();
            // SAFETY: the record is complete, and with its second copy in one piece.
            let raw = known.then(|| unsafe { header.add(HEADER).cast::<RawRecord>().read() });
            position += (HEADER + bytes).next_multiple_of(8) as u64;
            // SeqCst: the kernel wakes who waits here only where it sees that all before its record was taken. So this must be
            // out before the producer's position is looked at again.
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

    /// A ring as the kernel would have it, in words.
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
            // SAFETY: memory of that form, which is there for longer than the rings of these tests.
            unsafe { Ring::new(NonNull::from(&*self.0).cast()) }
        }

        fn consumer(&self) -> &AtomicU64 {
            &self.0[0]
        }

        fn producer(&self) -> &AtomicU64 {
            &self.0[4096 / 8]
        }

        /// Writes a word into both copies.
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
        // So that a record begins before the end and ends behind it.
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
