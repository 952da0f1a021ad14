//! Where this process is told of its faults when threads serve their own (`in_thread.rs`): a ring, which its fault handler
//! threads wait at in place of the userfaultfd. Nobody who waits at that is woken for a fault that a thread serves itself.
//!
//! What comes by the ring is a fault, to be served by its record, or an event, to be read from the userfaultfd. A record is
//! written before the thread is where the userfaultfd tells of it. So events are counted: as long as more have begun than were
//! read, handlers wait at both.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use alloc::boxed::Box;
use lowtide_bpf::record::Why;
use lowtide_bpf::ring::{self, Ring};
use lowtide_bpf::slot::{self, Slots};
use lowtide_core::lock::Lock;
use lowtide_core::vm::{self, Mapping, OnFork};
use lowtide_pager::fault::Fault;
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::clock::now_us;
use lowtide_pager::sys::uffd::Access;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::Timespec;

/// Bytes of what is mapped: the ring, and behind it the slots.
const BOTH: usize = ring::MAPPED_BYTES + slot::MAPPED_BYTES;
/// As long as events are said to wait that can't be read, for so many microseconds, handlers go on looking. Then they were read
/// before they were counted, or their threads have ended.
const SETTLED_AFTER_US: u64 = 100_000;
/// A handler looks into the userfaultfd after so long without a record, in seconds: what nobody was told of (a thread that
/// faulted while the process was registered) would else wait for good.
const LOOK_S: i64 = 1;

/// The ring and the slots of this process.
pub struct Told {
    ring: Lock<Ring>,
    fd: OwnedFd,
    /// What threads say to the kernel's programs.
    pub slots: Slots,
    memory: Mapping,
    /// By how many more events have begun than were read, where that means nothing: see [`SETTLED_AFTER_US`].
    settled: AtomicU64,
    seen: Lock<Seen>,
    /// Faults that were told and may not be lowtide's: see [`Told::take`].
    unknown: AtomicU64,
    /// The userfaultfd is to be read once, whatever is counted.
    look: AtomicBool,
    /// See [`Told::missing_stack`].
    missing_stack: AtomicUsize,
}

/// What handlers saw when they looked whether the userfaultfd must be read. Times in microseconds.
struct Seen {
    /// How many had begun, and were read, when they were last seen to differ by another number, and since when.
    counts: [u64; 2],
    since_us: u64,
    /// When it was last read without a reason.
    looked_us: u64,
}

static TOLD: AtomicPtr<Told> = AtomicPtr::new(core::ptr::null_mut());

/// The ring, once this process is told by it.
pub fn active() -> Option<&'static Told> {
    // Acquire: pairs with the Release in `begin`.
    // SAFETY: a box that is never freed.
    unsafe { TOLD.load(Ordering::Acquire).as_ref() }
}

/// From here on handlers wait at this.
pub fn begin(told: Box<Told>) {
    // Release: pairs with the Acquire in `active`.
    TOLD.store(Box::into_raw(told), Ordering::Release);
}

/// In a forked child, which is told of nothing: its parent's memory is not there.
///
/// # Safety
/// This process has one thread.
pub unsafe fn reset_after_fork() {
    let told = TOLD.swap(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: as in `active`; the mapping is used by nobody here.
    if let Some(told) = unsafe { told.as_ref() } {
        // SAFETY: as above. (The box stays: its descriptor is none of this process's.)
        unsafe { vm::retire_at(told.memory.addr()) };
    }
}

impl Told {
    /// What was sent by `lowtide run`, mapped.
    ///
    /// # Errors
    /// Those of mapping.
    pub fn new(ring: OwnedFd, slots: &OwnedFd) -> Result<Box<Told>, Errno> {
        let memory = vm::reserve(BOTH, OnFork::Share)?;
        let place = |offset: usize, len: usize, access: ProtFlags, fd: &OwnedFd| {
            let at = core::ptr::with_exposed_provenance_mut(memory.addr() + offset);
            // SAFETY: over a part of the mapping just made, which nobody knows of.
            unsafe { rustix::mm::mmap(at, len, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0) }
        };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        place(0, ring::MAPPED_BYTES, ProtFlags::READ, &ring)?;
        // What may be written the kernel wants mapped by itself.
        place(0, ring::WRITABLE_BYTES, both, &ring)?;
        place(ring::MAPPED_BYTES, slot::MAPPED_BYTES, both, slots)?;
        // SAFETY: a child has nothing to do with it.
        unsafe { rustix::mm::madvise(memory.as_ptr().cast(), BOTH, Advice::LinuxDontFork)? };
        let start = NonNull::new(memory.as_ptr()).ok_or(Errno::NOMEM)?;
        // SAFETY: the mapping stays as long as this process; its parts are as a ring and slots are to be.
        let (ring_at, slots) = unsafe { (Ring::new(start), Slots::new(start.add(ring::MAPPED_BYTES))) };
        Ok(Box::new(Told {
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

    /// The next fault that handlers are told of and that nobody has taken. One at a time: what is taken can't be handed back, as
    /// the thread may not wait yet where a wake-up would find it.
    pub fn take(&self, pager: &Pager) -> Option<Fault> {
        loop {
            let record = self.ring.lock().take()?;
            if record.stack != 0 {
                self.missing_stack.store(record.stack, Ordering::Relaxed);
            }
            let access = match record.why {
                // To be read: it is counted.
                Why::Event => continue,
                Why::Protected => Access::Protected,
                _ if record.fault.write => Access::Write,
                _ => Access::Read,
            };
            if pager.has_adopted(record.fault.page) {
                return Some(Fault { addr: record.fault.page, thread: record.thread, access });
            }
            // Of a userfaultfd of the program's own, perhaps, which that one is to serve. If it is lowtide's, it can be read.
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An address of a thread's stack that must be there before the thread can serve itself; each is told once.
    pub fn missing_stack(&self) -> Option<usize> {
        Some(self.missing_stack.swap(0, Ordering::Relaxed)).filter(|stack| *stack != 0)
    }

    /// By how many more have begun than were read, of all that only the userfaultfd tells: events, faults whose records were lost,
    /// and those that may not be lowtide's.
    fn ahead(&self, pager: &Pager) -> [u64; 2] {
        let unknown = self.unknown.load(Ordering::Relaxed);
        [self.slots.events().wrapping_add(self.slots.lost()).wrapping_add(unknown), pager.events_read()]
    }

    /// Whether the userfaultfd is to be read now, as far as counts tell.
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
        // As long as some begin or are read, they differ for other reasons each time.
        if seen.counts != counts {
            (seen.counts, seen.since_us) = (counts, now);
        } else if now.saturating_sub(seen.since_us) > SETTLED_AFTER_US && !pager.uffd().is_readable() {
            self.settled.store(ahead, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The userfaultfd is read at the next turn.
    pub fn look(&self) {
        self.look.store(true, Ordering::Relaxed);
    }

    /// Waits for a record, or for the userfaultfd if that `is_read` or must be, and for no longer than `time` (`None`: for ever);
    /// whether there may be something.
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
