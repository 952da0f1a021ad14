//! Page-aligned buffers for I/O: sealed pages are made here before they are written, and pages are read here when what they are
//! for is not aligned.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;

use crate::percpu;
use crate::vm::Page;
use crate::vm::{self, Mapping, OnFork, PAGE_SIZE};

/// Pages in a buffer: what the pager stores at a time. Disks get faster up to writes of about a MiB (256 KiB: 0.75 of the speed
/// of 512 KiB where this was measured), and memory is short.
pub const BUFFER_PAGES: usize = 128;
/// Buffers at least, and at most: as many as there are CPUs whose threads may want one at a time. They take memory once they are
/// used; the lowest ones are used first.
const LEAST_BUFFERS: usize = 4;
pub const MOST_BUFFERS: usize = 8;
/// In the word of busy buffers: one waits for one. (So many threads are never there that these run over.)
const WAITER: u32 = 1 << MOST_BUFFERS;

/// The buffers of a device.
#[derive(Debug)]
pub struct Buffers {
    map: Mapping,
    /// Bit i: buffer i is in use, or there is none. Above that: how many wait for one.
    busy: AtomicU32,
    /// That word while no buffer is in use and nobody waits.
    none_busy: u32,
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
        Buffers::for_cpus(percpu::count())
    }

    fn for_cpus(cpus: usize) -> Result<Buffers, Errno> {
        let count = cpus.clamp(LEAST_BUFFERS, MOST_BUFFERS);
        let map = vm::map(count * BUFFER_PAGES * PAGE_SIZE, OnFork::Copy)?;
        let none_busy = (WAITER - 1) & !((1 << count) - 1);
        Ok(Buffers { map, busy: AtomicU32::new(none_busy), none_busy })
    }

    /// Takes a buffer; `None` when all are in use.
    pub fn try_take(&self) -> Option<Buffer<'_>> {
        let mut busy = self.busy.load(Ordering::Relaxed);
        loop {
            let index = (!busy).trailing_zeros();
            if index as usize >= MOST_BUFFERS {
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
        if let Some(buffer) = self.try_take() {
            return buffer;
        }
        // Before it looks once more: who gives one back from here on wakes somebody.
        self.busy.fetch_add(WAITER, Ordering::Relaxed);
        let buffer = loop {
            if let Some(buffer) = self.try_take() {
                break buffer;
            }
            let busy = self.busy.load(Ordering::Relaxed);
            if busy % WAITER == WAITER - 1 {
                let _ = futex::wait(&self.busy, futex::Flags::PRIVATE, busy, None);
            }
        };
        self.busy.fetch_sub(WAITER, Ordering::Relaxed);
        buffer
    }

    /// In a forked child, before anything else is done with the buffers there: frees those that threads of the parent had, and
    /// gives back the child's copies.
    pub fn reset_after_fork(&self) {
        self.busy.store(self.none_busy, Ordering::Relaxed);
        // SAFETY: this process has no thread that has a buffer.
        unsafe { self.map.discard(0, self.map.len()) }
    }
}

impl Buffer<'_> {
    /// Which it is: less than [`MOST_BUFFERS`]. Nobody else has that one meanwhile.
    pub fn index(&self) -> usize {
        self.index as usize
    }

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
        let busy = self.of.busy.fetch_and(!(1 << self.index), Ordering::Release);
        if busy >= WAITER {
            // One for each buffer that is given back: who comes in between and takes it gives it back, too.
            let _ = futex::wake(&self.of.busy, futex::Flags::PRIVATE, 1);
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
        for (cpus, count) in [(1, 4), (2, 4), (6, 6), (64, 8)] {
            more_users_than_buffers(&Buffers::for_cpus(cpus).unwrap(), count);
        }
    }

    fn more_users_than_buffers(buffers: &Buffers, count: usize) {
        let all: Vec<Buffer<'_>> = core::iter::from_fn(|| buffers.try_take()).collect();
        assert_eq!(all.len(), count);
        let passed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for t in 0..3 * count as u8 {
                let passed = &passed;
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
        assert_eq!(passed.into_inner(), 50 * 3 * count);
        assert_eq!(buffers.busy.load(Ordering::Relaxed), buffers.none_busy);
    }
}
