//! Failures made on purpose: one call of a kind fails in a chosen way, or every so many, and all calls are counted, so that a test
//! can let each of them fail in turn. Only in unit tests and with the cargo feature `faults`, which nothing that is shipped has.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// What can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Op {
    /// A read or write of a device, or giving its space back.
    Device,
    /// A mapping of lowtide's own: `NOMEM`.
    Map,
    /// An allocation on lowtide's heap.
    Heap,
    /// A step of a fork in the process that forks.
    Forking,
    /// A step of a fork in the process that is forked.
    Forked,
    /// UFFDIO_COPY.
    Copy,
    /// UFFDIO_MOVE.
    Move,
    /// UFFDIO_WAKE.
    Wake,
    /// UFFDIO_REGISTER and UFFDIO_UNREGISTER.
    Register,
    /// PAGEMAP_SCAN.
    Scan,
}

const OPS: usize = 10;

/// How a call fails. What can't happen to it leaves it whole: a read can't be lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Fault {
    /// With EIO.
    Io,
    /// With ENOSPC.
    NoSpace,
    /// With EAGAIN.
    Again,
    /// With EINTR.
    Interrupted,
    /// With ENODEV, like all calls after it: the device has gone.
    Gone,
    /// With EBUSY.
    Busy,
    /// With EEXIST.
    Exists,
    /// With ENOENT.
    NoEntry,
    /// A read, write, COPY or MOVE moves one page only; a scan finds one range only.
    Page,
    /// A COPY or MOVE does its work, and says that it came one page far.
    Under,
    /// A read or write moves half a kilobyte only.
    Sector,
    /// A read gives, or a write puts, one wrong bit.
    Flip,
    /// A write says that it was done, and nothing was.
    Lost,
    /// A write puts its first page where the second belongs, and the second in place of the first.
    Swapped,
    /// There is no memory: ENOMEM.
    NoMemory,
    /// The process is killed.
    Killed,
}

/// One failure, and the counts of calls. It may lie in memory that processes share: then the counts are theirs together.
#[derive(Debug)]
#[repr(C)]
pub struct Faults {
    op: Op,
    fault: Fault,
    at: u64,
    /// How many calls later the next one fails, and so on; 0: none does.
    every: u64,
    calls: [AtomicU64; OPS],
    struck: AtomicU64,
    /// See [`first_handlers`] and [`most_handlers`]; 0: it is left to the process.
    handlers: [u64; 2],
    /// See [`cpus`]; 0: as many as there are.
    cpus: u64,
}

impl Faults {
    /// Call `at` of `op`, counted from 0, fails.
    pub const fn new(op: Op, fault: Fault, at: u64) -> Faults {
        Faults {
            op,
            fault,
            at,
            every: 0,
            calls: [const { AtomicU64::new(0) }; OPS],
            struck: AtomicU64::new(0),
            handlers: [0; 2],
            cpus: 0,
        }
    }

    /// The same, and after it every so many calls.
    pub const fn and_every(self, every: u64) -> Faults {
        Faults { every, ..self }
    }

    /// The same, and a process has other numbers of fault handler threads than it would have on this machine.
    pub const fn with_handlers(self, first: u64, most: u64) -> Faults {
        Faults { handlers: [first, most], ..self }
    }

    /// The same, and a process takes the machine for one that can have so many CPUs.
    pub const fn with_cpus(self, cpus: u64) -> Faults {
        Faults { cpus, ..self }
    }

    /// What fails, and how.
    pub const fn what(&self) -> (Op, Fault) {
        (self.op, self.fault)
    }

    /// Calls of `op` so far.
    pub fn calls(&self, op: Op) -> u64 {
        self.calls[op as usize].load(Ordering::Relaxed)
    }

    /// Whether a call has failed.
    pub fn has_struck(&self) -> bool {
        self.struck.load(Ordering::Relaxed) != 0
    }

    fn strikes(&self, op: Op, n: u64) -> bool {
        let Some(later) = n.checked_sub(self.at).filter(|_| op == self.op) else { return false };
        later == 0 || self.fault == Fault::Gone || self.every > 0 && later.is_multiple_of(self.every)
    }

    /// Counts a call; how it fails.
    pub fn next(&self, op: Op) -> Option<Fault> {
        let n = self.calls[op as usize].fetch_add(1, Ordering::Relaxed);
        self.strikes(op, n).then(|| {
            self.struck.store(1, Ordering::Relaxed);
            self.fault
        })
    }

    /// Counts `n` calls if none of them fails, else nothing; whether none does.
    pub fn pass(&self, op: Op, n: u64) -> bool {
        let whole = |begin| (begin..begin + n).all(|call| !self.strikes(op, call)).then_some(begin + n);
        self.calls[op as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, whole).is_ok()
    }
}

static INSTALLED: AtomicPtr<Faults> = AtomicPtr::new(core::ptr::null_mut());

/// Makes `faults` those of this process, and of its forked children.
pub fn install(faults: &'static Faults) {
    // Release: pairs with the Acquire in `installed`.
    INSTALLED.store(core::ptr::from_ref(faults).cast_mut(), Ordering::Release);
}

/// The faults of this process.
pub fn installed() -> Option<&'static Faults> {
    // Acquire: pairs with the Release in `install`.
    // SAFETY: set from a `&'static Faults` only, whose changing parts are atomics.
    unsafe { INSTALLED.load(Ordering::Acquire).as_ref() }
}

/// Counts a call of this process; whether it fails.
pub fn fails(op: Op) -> bool {
    installed().is_some_and(|faults| faults.next(op).is_some())
}

/// With how many fault handler threads a process begins.
pub fn first_handlers() -> Option<usize> {
    installed().map(|faults| faults.handlers[0] as usize).filter(|first| *first > 0)
}

/// How many it has at most.
pub fn most_handlers() -> Option<usize> {
    installed().map(|faults| faults.handlers[1] as usize).filter(|most| *most > 0)
}

/// How many CPUs the machine can have.
pub fn cpus() -> Option<usize> {
    installed().map(|faults| faults.cpus as usize).filter(|cpus| *cpus > 0)
}
