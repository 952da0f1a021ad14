//! The ring that reports faults when threads serve their own (`in_thread.rs`). Handlers wait at it
//! instead of the userfaultfd, so faults that threads serve wake no handler.
//!
//! A record is a fault to serve, or an event to read from the userfaultfd. It precedes the thread's
//! arrival there, so events are counted: while more have begun than were read, handlers wait at
//! both.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use alloc::boxed::Box;
use lowtide_bpf::record::Why;
use lowtide_bpf::ring::{self, Ring};
use lowtide_bpf::slot::{self, Slots};
use lowtide_core::lock::Lock;
use lowtide_core::vm::{self, Mapping, OnFork};
use lowtide_pager::pager::Pager;
use lowtide_pager::pages::Fault;
use lowtide_sys::clock::now_us;
use lowtide_sys::uffd::Access;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::Timespec;

const BOTH: usize = ring::MAPPED_BYTES + slot::MAPPED_BYTES;
/// Unreadable events that seem to wait this long were read before they were counted, or their
/// threads have ended.
const SETTLED_AFTER_US: u64 = 100_000;
/// Seconds without a record after which a handler reads the userfaultfd, for threads that faulted
/// during registration.
const LOOK_S: i64 = 1;

pub struct FaultRing {
    ring: Lock<Ring>,
    fd: OwnedFd,
    pub slots: Slots,
    memory: Mapping,
    /// A difference between begun and read events that means nothing: see [`SETTLED_AFTER_US`].
    settled: AtomicU64,
    seen: Lock<Seen>,
    unknown: AtomicU64,
    look: AtomicBool,
    missing_stack: AtomicUsize,
}

/// Times in microseconds.
struct Seen {
    counts: [u64; 2],
    since_us: u64,
    looked_us: u64,
}

static RING: AtomicPtr<FaultRing> = AtomicPtr::new(core::ptr::null_mut());

pub fn active() -> Option<&'static FaultRing> {
    // Acquire: pairs with the Release in `begin`.
    // SAFETY: a box that is never freed.
    unsafe { RING.load(Ordering::Acquire).as_ref() }
}

pub fn begin(ring: Box<FaultRing>) {
    // Release: pairs with the Acquire in `active`.
    RING.store(Box::into_raw(ring), Ordering::Release);
}

/// In a forked child, which has no ring.
///
/// # Safety
/// This process has one thread.
pub unsafe fn reset_after_fork() {
    let ring = RING.swap(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: as in `active`; no thread here uses the mapping.
    if let Some(ring) = unsafe { ring.as_ref() } {
        // SAFETY: as above. The box stays, because its descriptor is not this process's.
        unsafe { vm::retire_at(ring.memory.addr()) };
    }
}

impl FaultRing {
    /// Maps what `lowtide run` has sent.
    ///
    /// # Errors
    /// Those of mapping.
    pub fn new(ring: OwnedFd, slots: &OwnedFd) -> Result<Box<FaultRing>, Errno> {
        let memory = vm::reserve(BOTH, OnFork::Share)?;
        let place = |offset: usize, len: usize, access: ProtFlags, fd: &OwnedFd| {
            let at = core::ptr::with_exposed_provenance_mut(memory.addr() + offset);
            // SAFETY: over a part of the new mapping, unknown to other code.
            unsafe { rustix::mm::mmap(at, len, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0) }
        };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        place(0, ring::MAPPED_BYTES, ProtFlags::READ, &ring)?;
        // The kernel wants the writable part mapped separately.
        place(0, ring::WRITABLE_BYTES, both, &ring)?;
        place(ring::MAPPED_BYTES, slot::MAPPED_BYTES, both, slots)?;
        // SAFETY: children do not use it.
        unsafe { rustix::mm::madvise(memory.as_ptr().cast(), BOTH, Advice::LinuxDontFork)? };
        let start = NonNull::new(memory.as_ptr()).ok_or(Errno::NOMEM)?;
        // SAFETY: the mapping lasts as long as this process; its parts are laid out as a ring and
        // slots.
        let (ring_at, slots) = unsafe { (Ring::new(start), Slots::new(start.add(ring::MAPPED_BYTES))) };
        Ok(Box::new(FaultRing {
            ring: Lock::new(ring_at),
            fd: ring,
            slots,
            memory,
            settled: AtomicU64::new(0),
            seen: Lock::new(Seen { counts: [0; 2], since_us: now_us(), looked_us: 0 }),
            unknown: AtomicU64::new(0),
            look: AtomicBool::new(true),
            missing_stack: AtomicUsize::new(0),
        }))
    }

    /// One at a time: a fault can't be put back, because its thread may not yet wait where a
    /// wake-up would find it.
    pub fn take(&self, pager: &Pager) -> Option<Fault> {
        loop {
            let record = self.ring.lock().take()?;
            if record.stack != 0 {
                self.missing_stack.store(record.stack, Ordering::Relaxed);
            }
            let access = match record.why {
                Why::Event => continue,
                Why::Protected => Access::Protected,
                _ if record.fault.write => Access::Write,
                _ => Access::Read,
            };
            if pager.has_registered(record.fault.page) {
                return Some(Fault { addr: record.fault.page, thread: record.thread, access });
            }
            // Perhaps of the program's own userfaultfd. lowtide's can be read.
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn missing_stack(&self) -> Option<usize> {
        Some(self.missing_stack.swap(0, Ordering::Relaxed)).filter(|stack| *stack != 0)
    }

    /// Begun and read counts of what only the userfaultfd reports: events, faults with lost
    /// records, and those perhaps not lowtide's.
    fn ahead(&self, pager: &Pager) -> [u64; 2] {
        let unknown = self.unknown.load(Ordering::Relaxed);
        [self.slots.events().wrapping_add(self.slots.lost()).wrapping_add(unknown), pager.events_read()]
    }

    pub fn must_read(&self, pager: &Pager) -> bool {
        let mut seen = self.seen.lock();
        let counts = self.ahead(pager);
        let (now, ahead) = (now_us(), counts[0].wrapping_sub(counts[1]));
        if ahead == self.settled.load(Ordering::Relaxed) {
            let looks = now.saturating_sub(seen.looked_us) > LOOK_S as u64 * 1_000_000;
            if self.look.swap(false, Ordering::Relaxed) || looks {
                seen.looked_us = now;
                return true;
            }
            return false;
        }
        if seen.counts != counts {
            (seen.counts, seen.since_us) = (counts, now);
        } else if now.saturating_sub(seen.since_us) > SETTLED_AFTER_US && !pager.uffd().is_readable() {
            self.settled.store(ahead, Ordering::Relaxed);
            return false;
        }
        true
    }

    pub fn look(&self) {
        self.look.store(true, Ordering::Relaxed);
    }

    /// Waits up to `time` (`None`: [`LOOK_S`]) for a record, or for the userfaultfd if it `is_read`
    /// or must be.
    pub fn wait(&self, pager: &Pager, is_read: bool, time: Option<&Timespec>) -> bool {
        let longest = Timespec { tv_sec: LOOK_S, tv_nsec: 0 };
        let uffd = pager.uffd().as_fd();
        let mut both = [PollFd::new(&self.fd, PollFlags::IN), PollFd::from_borrowed_fd(uffd, PollFlags::IN)];
        let counts = self.ahead(pager);
        let is_read = is_read || counts[0].wrapping_sub(counts[1]) != self.settled.load(Ordering::Relaxed);
        let waits_for = if is_read { &mut both[..] } else { &mut both[..1] };
        poll(waits_for, Some(time.unwrap_or(&longest))).is_ok_and(|ready| ready > 0)
    }
}
