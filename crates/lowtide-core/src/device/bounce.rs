//! Page-aligned buffers for I/O: sealed pages are made here before they are written, and pages are read here when what they are
//! for is not aligned.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;

use crate::vm::Page;
use crate::vm::{self, Mapping, OnFork, PAGE_SIZE};

/// Pages in a buffer: what the pager stores at a time. Disks get faster up to writes of about a MiB (256 KiB: 0.75 of the speed
/// of 512 KiB where this was measured), and memory is short.
pub const BUFFER_PAGES: usize = 128;
/// Buffers. They take memory once they are used; the lowest ones are used first.
pub const BUFFERS: usize = 4;
/// In the word of busy buffers: somebody waits for one.
const WAITERS: u32 = 1 << BUFFERS;
const ALL: u32 = WAITERS - 1;

/// The buffers of a device.
#[derive(Debug)]
pub struct Buffers {
    map: Mapping,
    /// Bit i: buffer i is in use.
    busy: AtomicU32,
}

/// One buffer, for as long as this lives.
pub struct Buffer<'a> {
    of: &'a Buffers,
    index: u32,
}

impl Buffers {
    /// Address space for the buffers.
    ///
    /// # Errors
    /// As [`vm::map`].
    pub fn new() -> Result<Buffers, Errno> {
        let map = vm::map(BUFFERS * BUFFER_PAGES * PAGE_SIZE, OnFork::Copy)?;
        Ok(Buffers { map, busy: AtomicU32::new(0) })
    }

    /// Takes a buffer; `None` when all are in use.
    pub fn try_take(&self) -> Option<Buffer<'_>> {
        let mut busy = self.busy.load(Ordering::Relaxed);
        loop {
            let index = (!busy & ALL).trailing_zeros();
            if index as usize >= BUFFERS {
                return None;
            }
            // Acquire: pairs with the Release with which a buffer is dropped.
            match self.busy.compare_exchange_weak(busy, busy | 1 << index, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Buffer { of: self, index }),
                Err(now) => busy = now,
            }
        }
    }

    /// Takes a buffer, and waits for one if all are in use: for the I/O of others, so the caller may hold no other buffer and
    /// no lock.
    pub fn take(&self) -> Buffer<'_> {
        loop {
            if let Some(buffer) = self.try_take() {
                return buffer;
            }
            let busy = self.busy.fetch_or(WAITERS, Ordering::Relaxed) | WAITERS;
            if busy & ALL == ALL {
                let _ = futex::wait(&self.busy, futex::Flags::PRIVATE, busy, None);
            }
        }
    }

    /// In a forked child, before anything else is done with the buffers there: frees those that threads of the parent had.
    pub fn reset_after_fork(&self) {
        self.busy.store(0, Ordering::Relaxed);
    }
}

impl Buffer<'_> {
    /// The pages of the buffer; what they hold is left from before.
    pub fn pages(&mut self) -> &mut [Page; BUFFER_PAGES] {
        let at = self.index as usize * BUFFER_PAGES * PAGE_SIZE;
        // SAFETY: inside the mapping, any bytes are a Page, and the busy bit makes this the buffer's only user.
        unsafe { &mut *self.of.map.as_ptr().add(at).cast() }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `try_take`.
        let busy = self.of.busy.fetch_and(!(1 << self.index | WAITERS), Ordering::Release);
        if busy & WAITERS != 0 {
            let _ = futex::wake(&self.of.busy, futex::Flags::PRIVATE, u32::MAX >> 1);
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: buffers borrow this, so none is left.
        unsafe { self.map.retire() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::vec::Vec;

    #[test]
    fn more_users_than_buffers_each_have_one_alone() {
        let buffers = Buffers::new().unwrap();
        let all: Vec<Buffer<'_>> = core::iter::from_fn(|| buffers.try_take()).collect();
        assert_eq!(all.len(), BUFFERS);
        let passed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for t in 0..3 * BUFFERS as u8 {
                let (buffers, passed) = (&buffers, &passed);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let mut buffer = buffers.take();
                        buffer.pages()[BUFFER_PAGES - 1].fill(t);
                        std::thread::yield_now();
                        assert!(buffer.pages()[BUFFER_PAGES - 1].iter().all(|b| *b == t));
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            drop(all);
        });
        assert_eq!(passed.into_inner(), 50 * 3 * BUFFERS);
        assert_eq!(buffers.busy.load(Ordering::Relaxed) & ALL, 0);
    }
}
