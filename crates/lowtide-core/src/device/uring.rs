//! io_uring: several transfers with one system call.
//!
//! A ring belongs to one batch at a time; without a free ring a batch uses plain calls. Its memory
//! is two pages of lowtide's own (IORING_SETUP_NO_MMAP), so no kernel mapping appears among the
//! program's; the kernel reads it only during the batch's `io_uring_enter`. Rings stay in memory,
//! so they are made only when batches meet. A transfer whose start would block (for a block lookup)
//! runs on a kernel worker thread in the process, which ends after some idle seconds.
//!
//! A forked child has only a copy of a ring's memory: it must [`Rings::forget`] them first.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use arrayvec::ArrayVec;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringOp, IoringSetupFlags, io_uring_enter, io_uring_params, io_uring_ptr, io_uring_setup, io_uring_sqe,
    io_uring_user_data,
};

use super::transfer::{File, Pages, Transfer};
use crate::percpu;
use crate::vm::{self, Mapping, OnFork, PAGE_SIZE};

/// Most transfers of a ring: a page each of submissions and completions.
pub const DEPTH: usize = 32;
/// Bounds for the number of rings, else one for each CPU.
const LEAST_RINGS: usize = 4;
const MOST_RINGS: usize = 8;

#[derive(Debug)]
pub struct Rings {
    list: ArrayVec<Ring, MOST_RINGS>,
    offsets: Offsets,
}

/// In place of a ring's descriptor: not made yet, or unusable.
const NOT_MADE: i32 = -1;
const GONE: i32 = -2;

#[derive(Debug)]
struct Ring {
    /// The descriptor, [`NOT_MADE`] or [`GONE`].
    fd: AtomicI32,
    busy: AtomicBool,
    /// Submissions in the first page; heads, tails and completions in the second.
    map: Mapping,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Offsets {
    sq_head: u32,
    sq_tail: u32,
    sq_mask: u32,
    cq_head: u32,
    cq_tail: u32,
    cq_mask: u32,
    cqes: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

impl Rings {
    /// Makes the first ring, and room for others.
    ///
    /// # Errors
    /// `PERM` or `NOSYS` without io_uring, others of io_uring_setup and [`vm::map`]: the device
    /// works without.
    pub fn new() -> Result<Rings, Errno> {
        Rings::for_cpus(percpu::count())
    }

    fn for_cpus(cpus: usize) -> Result<Rings, Errno> {
        let mut list = ArrayVec::new();
        let first = Ring::new()?;
        let offsets = first.make()?;
        list.push(first);
        list.extend((1..cpus.clamp(LEAST_RINGS, MOST_RINGS)).map_while(|_| Ring::new().ok()));
        Ok(Rings { list, offsets })
    }

    /// The caller gives the ring back.
    fn take(&self) -> Option<&Ring> {
        // Acquire: pairs with the Release in `give_back`.
        let is_free = |ring: &&Ring| {
            ring.fd.load(Ordering::Relaxed) != GONE
                && ring.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let ring = self.list.iter().find(is_free)?;
        if ring.fd.load(Ordering::Relaxed) == NOT_MADE && ring.make() != Ok(self.offsets) {
            // Not tried again for each batch.
            ring.fd.store(GONE, Ordering::Relaxed);
            ring.give_back();
            return None;
        }
        Some(ring)
    }

    /// In a forked child: drops the parent's rings.
    pub fn forget(&self) {
        for ring in &self.list {
            ring.fd.store(GONE, Ordering::Relaxed);
            // SAFETY: unused without a descriptor.
            unsafe { ring.map.discard(0, 2 * PAGE_SIZE) };
        }
    }

    /// Performs up to [`DEPTH`] transfers, and hands each result to `done`. False: no ring was
    /// free.
    pub fn perform(&self, file: File<'_>, batch: &mut [Transfer<'_>], mut done: impl FnMut(usize, Result<(), Errno>)) -> bool {
        #[cfg(any(test, feature = "faults"))]
        if file.faults.is_some_and(|faults| !faults.pass(crate::faults::Op::Device, batch.len() as u64)) {
            return false;
        }
        let Some(ring) = self.take() else { return false };
        let mut first = [Err(Errno::AGAIN); DEPTH];
        let n = batch.len().min(DEPTH);
        ring.start_and_wait(&self.offsets, file.fd, &mut batch[..n], &mut first);
        ring.give_back();
        for (i, transfer) in batch.iter_mut().enumerate() {
            let first = first.get(i).copied().unwrap_or(Err(Errno::AGAIN));
            done(i, transfer.go_on(file, first));
        }
        true
    }
}

impl Ring {
    fn new() -> Result<Ring, Errno> {
        let map = vm::map(2 * PAGE_SIZE, OnFork::Copy)?;
        Ok(Ring { fd: AtomicI32::new(NOT_MADE), busy: AtomicBool::new(false), map })
    }

    fn give_back(&self) {
        // Release: pairs with the Acquire in `Rings::take`.
        self.busy.store(false, Ordering::Release);
    }

    /// Only for the ring's holder.
    fn make(&self) -> Result<Offsets, Errno> {
        let map = &self.map;
        // The kernel pins the pages; they must exist.
        // SAFETY: only the ring's holder uses the mapping.
        unsafe { map.as_ptr().write_bytes(0, 2 * PAGE_SIZE) };
        let mut params = io_uring_params::default();
        params.flags = IoringSetupFlags::NO_MMAP | IoringSetupFlags::NO_SQARRAY | IoringSetupFlags::COOP_TASKRUN;
        params.sq_off.user_addr = io_uring_ptr::new(map.as_ptr().cast());
        // SAFETY: the second page of the mapping.
        params.cq_off.user_addr = io_uring_ptr::new(unsafe { map.as_ptr().add(PAGE_SIZE) }.cast());
        // SAFETY: both queues fit into their pages (the kernel checks), mapped while the ring is
        // open.
        let fd = unsafe { io_uring_setup(DEPTH as u32, &mut params)? };
        self.fd.store(fd.into_raw_fd(), Ordering::Relaxed);
        let (sq, cq) = (params.sq_off, params.cq_off);
        Ok(Offsets {
            sq_head: sq.head,
            sq_tail: sq.tail,
            sq_mask: sq.ring_mask,
            cq_head: cq.head,
            cq_tail: cq.tail,
            cq_mask: cq.ring_mask,
            cqes: cq.cqes,
        })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: inside the second page, aligned, by the kernel's offsets; all accesses here are
        // atomic.
        unsafe { AtomicU32::from_ptr(self.map.as_ptr().add(PAGE_SIZE + offset as usize).cast()) }
    }

    /// Starts all transfers and waits. `out[i]`: bytes moved, or the error; unchanged if not
    /// started. Only for the ring's holder.
    fn start_and_wait(
        &self,
        offsets: &Offsets,
        fd: BorrowedFd<'_>,
        batch: &mut [Transfer<'_>],
        out: &mut [Result<usize, Errno>; DEPTH],
    ) {
        // SAFETY: the descriptor stays open while the device lives.
        let ring = unsafe { BorrowedFd::borrow_raw(self.fd.load(Ordering::Relaxed)) };
        let (tail, mask) = (self.word(offsets.sq_tail), self.word(offsets.sq_mask).load(Ordering::Relaxed));
        let begin = tail.load(Ordering::Relaxed);
        for (i, transfer) in batch.iter_mut().enumerate() {
            let at = begin.wrapping_add(i as u32) & mask;
            let mut entry = io_uring_sqe::default();
            let (op, addr) = match &mut transfer.pages {
                Pages::Into(pages) => (IoringOp::Read, pages.as_mut_ptr().cast()),
                Pages::From(pages) => (IoringOp::Write, pages.as_ptr().cast_mut().cast()),
            };
            entry.opcode = op;
            entry.fd = fd.as_raw_fd();
            entry.off_or_addr2.off = transfer.offset;
            entry.addr_or_splice_off_in.addr = io_uring_ptr::new(addr);
            entry.len.len = transfer.len() as u32;
            entry.user_data = io_uring_user_data::from_u64(i as u64);
            // SAFETY: entry `at` of the first page, free again.
            unsafe { self.map.as_ptr().cast::<io_uring_sqe>().add(at as usize).write(entry) };
        }
        let mut end = begin.wrapping_add(batch.len() as u32);
        // Release: pairs with the kernel's Acquire before it reads the entries.
        tail.store(end, Ordering::Release);
        let (mut left, mut waiting) = (batch.len() as u32, 0u32);
        loop {
            // SAFETY: the buffers are borrowed until all completions have come.
            let entered = unsafe { io_uring_enter(ring, left, left + waiting, IoringEnterFlags::GETEVENTS) };
            // The head counts taken entries. Acquire: pairs with the kernel's Release.
            let taken = self.word(offsets.sq_head).load(Ordering::Acquire);
            let untaken = end.wrapping_sub(taken);
            waiting += left - untaken;
            left = untaken;
            waiting -= self.collect(offsets, out);
            match entered {
                _ if left + waiting == 0 => return,
                Ok(_) | Err(Errno::INTR) => {}
                // Rare (no memory, a full queue).
                Err(_) if left > 0 => {
                    tail.store(taken, Ordering::Release);
                    (end, left) = (taken, 0);
                    if waiting == 0 {
                        return;
                    }
                }
                // The kernel still writes to the buffers.
                Err(_) => rustix::thread::sched_yield(),
            }
        }
    }

    fn collect(&self, offsets: &Offsets, out: &mut [Result<usize, Errno>; DEPTH]) -> u32 {
        let (head, mask) = (self.word(offsets.cq_head), self.word(offsets.cq_mask).load(Ordering::Relaxed));
        // Acquire: pairs with the kernel's Release after writing the completions.
        let (begin, end) = (head.load(Ordering::Relaxed), self.word(offsets.cq_tail).load(Ordering::Acquire));
        let mut at = begin;
        while at != end {
            let place = PAGE_SIZE + offsets.cqes as usize + (at & mask) as usize * size_of::<Completion>();
            // SAFETY: written before the kernel moved the tail.
            let completion: Completion = unsafe { self.map.as_ptr().add(place).cast::<Completion>().read() };
            if let Some(out) = out.get_mut(completion.user_data as usize) {
                *out = match completion.result {
                    n @ 1.. => Ok(n as usize),
                    0 => Err(Errno::IO),
                    error => Err(Errno::from_raw_os_error(-error)),
                };
            }
            at = at.wrapping_add(1);
        }
        // Release: pairs with the kernel's Acquire before it overwrites the entries.
        head.store(end, Ordering::Release);
        end.wrapping_sub(begin)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let fd = *self.fd.get_mut();
        if fd >= 0 {
            // SAFETY: the ring owns the descriptor.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        // SAFETY: nothing is in flight, and the ring is unused.
        unsafe { self.map.retire() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(rings: &Rings) -> usize {
        rings.list.iter().filter(|ring| ring.map.populated_pages() > 0).count()
    }

    #[test]
    fn rings_take_memory_when_batches_meet_however_many_cpus_there_are() {
        let Ok(rings) = Rings::for_cpus(256) else {
            crate::skipped::skipped("no io_uring here");
            return;
        };
        assert_eq!((made(&rings), rings.list.len()), (1, MOST_RINGS));
        for at_once in [1, 3, MOST_RINGS] {
            for _ in 0..2 {
                let taken: std::vec::Vec<&Ring> = (0..at_once).map(|_| rings.take().unwrap()).collect();
                assert_eq!(made(&rings), at_once);
                assert!(at_once < MOST_RINGS || rings.take().is_none(), "all are in use");
                taken.into_iter().for_each(Ring::give_back);
            }
        }
        rings.forget();
        assert!(rings.take().is_none() && made(&rings) == 0, "a forked child has none");
    }
}
