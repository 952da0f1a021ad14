//! Page-aligned buffers for I/O: for sealing, and for reads into unaligned memory.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;

use crate::percpu;
use crate::vm::Page;
use crate::vm::{self, Mapping, OnFork, PAGE_SIZE};

/// Pages in a buffer: a batch of the pager. Larger writes are faster up to about a MiB (256 KiB:
/// 0.75 of the speed of 512 KiB), but memory is short.
pub const BUFFER_PAGES: usize = 128;
/// Bounds for the number of buffers, else one for each CPU. They take memory on first use, lowest
/// first.
const LEAST_BUFFERS: usize = 4;
pub const MOST_BUFFERS: usize = 8;
/// One waiter in the busy word. (Too few threads exist to overflow it.)
const WAITER: u32 = 1 << MOST_BUFFERS;

#[derive(Debug)]
pub struct Buffers {
    map: Mapping,
    /// Bit i: buffer i is in use, or missing. Above: waiters.
    busy: AtomicU32,
    none_busy: u32,
}

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

    /// `None` when all are in use.
    pub fn try_take(&self) -> Option<Buffer<'_>> {
        let mut busy = self.busy.load(Ordering::Relaxed);
        loop {
            let index = (!busy).trailing_zeros();
            if index as usize >= MOST_BUFFERS {
                return None;
            }
            // Acquire: pairs with the Release in `Buffer::drop`.
            match self.busy.compare_exchange_weak(busy, busy | 1 << index, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Buffer { of: self, index }),
                Err(now) => busy = now,
            }
        }
    }

    /// Takes a buffer, or waits for other threads' I/O: the caller may hold no other buffer and no
    /// lock.
    pub fn take(&self) -> Buffer<'_> {
        if let Some(buffer) = self.try_take() {
            return buffer;
        }
        // Before the next try: a buffer returned from here on wakes a waiter.
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

    /// First in a forked child: takes the parent's threads' buffers back, and frees their memory.
    pub fn reset_after_fork(&self) {
        self.busy.store(self.none_busy, Ordering::Relaxed);
        // SAFETY: no thread of this process has a buffer.
        unsafe { self.map.discard(0, self.map.len()) }
    }
}

impl Buffer<'_> {
    /// Less than [`MOST_BUFFERS`]; unique while the buffer is held.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// The buffer's pages, with old content.
    pub fn pages(&mut self) -> &mut [Page; BUFFER_PAGES] {
        let at = self.index as usize * BUFFER_PAGES * PAGE_SIZE;
        // SAFETY: inside the mapping, any bytes are a Page, and the busy bit makes this the only
        // user.
        unsafe { &mut *self.of.map.as_ptr().add(at).cast() }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `try_take`.
        let busy = self.of.busy.fetch_and(!(1 << self.index), Ordering::Release);
        if busy >= WAITER {
            // One waiter is enough: a thread that takes the buffer first returns it, too.
            let _ = futex::wake(&self.of.busy, futex::Flags::PRIVATE, 1);
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: buffers borrow this.
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
