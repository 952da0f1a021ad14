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
/// used, until they are used no more; the lowest ones are used first.
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
    /// Bit i: buffer i was used since [`Buffers::give_back_unused`].
    used: AtomicU32,
    /// Bit i: buffer i may have memory.
    held: AtomicU32,
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
        let [used, held] = [0; 2].map(AtomicU32::new);
        Ok(Buffers { map, busy: AtomicU32::new(none_busy), used, held, none_busy })
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
                Ok(_) => {
                    self.used.fetch_or(1 << index, Ordering::Relaxed);
                    self.held.fetch_or(1 << index, Ordering::Relaxed);
                    return Some(Buffer { of: self, index });
                }
                Err(now) => busy = now,
            }
        }
    }

    /// Gives the memory of buffers back to the kernel that nobody has used since this was last called.
    pub fn give_back_unused(&self) {
        let used = self.used.swap(0, Ordering::Relaxed);
        let unused = self.held.load(Ordering::Relaxed) & !used;
        for index in (0..MOST_BUFFERS as u32).filter(|index| unused >> index & 1 == 1) {
            // Acquire: as in `try_take`.
            if self.busy.fetch_or(1 << index, Ordering::Acquire) >> index & 1 == 0 {
                let buffer = Buffer { of: self, index };
                // SAFETY: the busy bit makes this thread the buffer's only user.
                unsafe { self.map.discard(buffer.offset(), BUFFER_PAGES * PAGE_SIZE) };
                self.held.fetch_and(!(1 << index), Ordering::Relaxed);
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
        self.held.store(0, Ordering::Relaxed);
        // SAFETY: this process has no thread that has a buffer.
        unsafe { self.map.discard(0, self.map.len()) }
    }
}

impl Buffer<'_> {
    /// The pages of the buffer; what they hold is left from before.
    pub fn pages(&mut self) -> &mut [Page; BUFFER_PAGES] {
        // SAFETY: inside the mapping, any bytes are a Page, and the busy bit makes this the buffer's only user.
        unsafe { &mut *self.of.map.as_ptr().add(self.offset()).cast() }
    }

    /// Where it is in the mapping, in bytes.
    fn offset(&self) -> usize {
        self.index as usize * BUFFER_PAGES * PAGE_SIZE
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

    /// What a burst of writes took is not kept by each process for ever.
    #[test]
    fn buffers_that_are_not_used_any_more_take_no_memory() {
        let buffers = Buffers::for_cpus(64).unwrap();
        let use_some = |count: usize| {
            let mut some: Vec<Buffer<'_>> = (0..count).map(|_| buffers.take()).collect();
            some.iter_mut().for_each(|buffer| buffer.pages().iter_mut().for_each(|page| page.fill(1)));
        };
        let held = || buffers.map.populated_pages() / BUFFER_PAGES;
        use_some(8);
        buffers.give_back_unused();
        assert_eq!(held(), 8, "they were used a moment ago");
        use_some(2);
        let kept = buffers.take();
        buffers.give_back_unused();
        assert_eq!(held(), 2, "six were not used any more");
        for _ in 0..2 {
            buffers.give_back_unused();
            assert_eq!(held(), 1, "one is in use");
        }
        drop(kept);
        buffers.give_back_unused();
        assert_eq!((held(), buffers.busy.load(Ordering::Relaxed)), (0, buffers.none_busy));
        more_users_than_buffers(&buffers, 8);
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
