//! Where this process is told of its faults when threads serve their own (`in_thread.rs`): a ring, which its fault handler
//! threads wait at in place of the userfaultfd. Nobody who waits at that is woken for a fault that a thread serves itself.
//!
//! What comes by the ring is a fault, to be served by its record, or an event, to be read from the userfaultfd. A record is
//! written before the thread is where the userfaultfd tells of it. So events are counted: as long as more have begun than were
//! read, handlers wait at both.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use alloc::boxed::Box;
use arrayvec::ArrayVec;
use lowtide_bpf::record::Why;
use lowtide_bpf::ring::{RING_BYTES, Ring};
use lowtide_bpf::slot::{SLOTS_BYTES, Slots};
use lowtide_core::lock::Lock;
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use lowtide_pager::fault::Fault;
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::clock::now_us;
use lowtide_pager::sys::uffd::{Access, MOST_READ};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::Timespec;

/// Bytes of a mapped ring: the position of who reads, that of the kernel, and the records, twice.
const MAPPED_RING: usize = 2 * PAGE_SIZE + 2 * RING_BYTES;
/// Bytes of the mapped slots.
const MAPPED_SLOTS: usize = SLOTS_BYTES.next_multiple_of(PAGE_SIZE);
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
    /// How many had begun, and were read, when they were last seen to differ by another number, and when that was, in
    /// microseconds.
    counts: [AtomicU64; 2],
    since_us: AtomicU64,
    /// The userfaultfd is to be read once, whatever is counted.
    look: AtomicBool,
    /// When it was last read without a reason, in microseconds.
    looked_us: AtomicU64,
    /// See [`Told::missing_stack`].
    missing_stack: AtomicUsize,
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
        let memory = vm::reserve(MAPPED_RING + MAPPED_SLOTS, OnFork::Share)?;
        let at = memory.addr();
        let place = |offset: usize, len: usize, access: ProtFlags, fd: &OwnedFd, from: usize| {
            let at = core::ptr::with_exposed_provenance_mut(at + offset);
            // SAFETY: over a part of the mapping just made, which nobody knows of.
            unsafe { rustix::mm::mmap(at, len, access, MapFlags::SHARED | MapFlags::FIXED, fd, from as u64) }
        };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        place(0, PAGE_SIZE, both, &ring, 0)?;
        place(PAGE_SIZE, MAPPED_RING - PAGE_SIZE, ProtFlags::READ, &ring, PAGE_SIZE)?;
        place(MAPPED_RING, MAPPED_SLOTS, both, slots, 0)?;
        // SAFETY: a child has nothing to do with it.
        unsafe { rustix::mm::madvise(memory.as_ptr().cast(), MAPPED_RING + MAPPED_SLOTS, Advice::LinuxDontFork)? };
        let start = NonNull::new(memory.as_ptr()).ok_or(Errno::NOMEM)?;
        // SAFETY: inside of the mapping, which stays as long as this process; its parts are as a ring and slots are to be.
        let (ring_at, slots) = unsafe {
            let [producer, data] = [PAGE_SIZE, 2 * PAGE_SIZE].map(|offset| start.add(offset));
            (Ring::new(start.cast(), producer.cast(), data), Slots::new(start.add(MAPPED_RING)))
        };
        Ok(Box::new(Told {
            ring: Lock::new(ring_at),
            fd: ring,
            slots,
            memory,
            settled: AtomicU64::new(0),
            counts: [const { AtomicU64::new(0) }; 2],
            since_us: AtomicU64::new(now_us()),
            look: AtomicBool::new(true),
            looked_us: AtomicU64::new(0),
            missing_stack: AtomicUsize::new(0),
        }))
    }

    /// The faults that handlers are told of and that nobody has taken, `most` at most.
    pub fn take(&self, most: usize) -> ArrayVec<Fault, MOST_READ> {
        let mut faults = ArrayVec::new();
        let mut ring = self.ring.lock();
        while faults.len() < most.min(MOST_READ)
            && let Some(record) = ring.take()
        {
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
            faults.push(Fault { addr: record.fault.page, thread: record.thread, access });
        }
        faults
    }

    /// An address of a thread's stack that must be there before the thread can serve itself; each is told once.
    pub fn missing_stack(&self) -> Option<usize> {
        (self.missing_stack.load(Ordering::Relaxed) != 0)
            .then(|| self.missing_stack.swap(0, Ordering::Relaxed))
            .filter(|stack| *stack != 0)
    }

    /// Whether the userfaultfd has something that must be read, or may have.
    pub fn must_read(&self, pager: &Pager) -> bool {
        // Lost records, too: of their faults only the userfaultfd tells.
        let counts = [self.slots.events().wrapping_add(self.slots.lost()), pager.events_read()];
        let ahead = counts[0].wrapping_sub(counts[1]);
        let now = now_us();
        if ahead == self.settled.load(Ordering::Relaxed) {
            let looks = now.saturating_sub(self.looked_us.load(Ordering::Relaxed)) > LOOK_S as u64 * 1_000_000;
            if !looks && !self.look.load(Ordering::Relaxed) {
                return false;
            }
            self.look.store(false, Ordering::Relaxed);
            self.looked_us.store(now, Ordering::Relaxed);
            return true;
        }
        // As long as some begin or are read, they differ for other reasons each time.
        let last = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        if last != counts {
            self.counts.iter().zip(counts).for_each(|(last, count)| last.store(count, Ordering::Relaxed));
            self.since_us.store(now, Ordering::Relaxed);
        } else if now.saturating_sub(self.since_us.load(Ordering::Relaxed)) > SETTLED_AFTER_US && !pager.uffd().is_readable() {
            self.settled.store(ahead, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The userfaultfd is read at the next turn.
    pub fn look(&self) {
        self.look.store(true, Ordering::Relaxed);
    }

    /// Waits for a record, or what must be read, and for no longer than `time` (`None`: for ever); whether there may be one.
    pub fn wait(&self, pager: &Pager, time: Option<&Timespec>) -> bool {
        let longest = Timespec { tv_sec: LOOK_S, tv_nsec: 0 };
        let time = time.unwrap_or(&longest);
        let uffd = pager.uffd().as_fd();
        let mut both = [PollFd::new(&self.fd, PollFlags::IN), PollFd::from_borrowed_fd(uffd, PollFlags::IN)];
        let waits_for = if self.must_read(pager) { &mut both[..] } else { &mut both[..1] };
        poll(waits_for, Some(time)).is_ok_and(|ready| ready > 0)
    }
}
