//! Fault injection for unit tests and the cargo feature `faults`: chosen calls of a kind fail, and
//! all are counted, so that a test can fail each in turn.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Operations that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Op {
    /// Device I/O or discard.
    Device,
    /// A mapping of lowtide's own: `NOMEM`.
    Map,
    /// Allocation on lowtide's heap.
    Heap,
    /// A step of a fork in the parent.
    Forking,
    /// A step of a fork in the child.
    Forked,
    /// UFFDIO_COPY.
    Copy,
    /// UFFDIO_MOVE.
    Move,
    /// UFFDIO_WAKE.
    Wake,
    /// UFFDIO_REGISTER, UFFDIO_UNREGISTER.
    Register,
    /// PAGEMAP_SCAN.
    Scan,
}

const OPS: usize = 10;

/// How a call fails; inapplicable faults do nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Fault {
    /// EIO.
    Io,
    /// ENOSPC.
    NoSpace,
    /// EAGAIN.
    Again,
    /// EINTR.
    Interrupted,
    /// ENODEV, as for all later calls.
    Gone,
    /// EBUSY.
    Busy,
    /// EEXIST.
    Exists,
    /// ENOENT.
    NoEntry,
    /// Only one page is moved, or one range found by a scan.
    Page,
    /// A COPY or MOVE succeeds but reports one page.
    Under,
    /// Only half a kilobyte is read or written.
    Sector,
    /// One bit of a read or write flips.
    Flip,
    /// A write reports success but writes nothing.
    Lost,
    /// A write swaps its first two pages.
    Swapped,
    /// ENOMEM.
    NoMemory,
    /// The process is killed.
    Killed,
}

/// One fault, and call counts; processes may share it.
#[derive(Debug)]
#[repr(C)]
pub struct Faults {
    op: Op,
    fault: Fault,
    at: u64,
    /// About one in so many calls fails; 0: one fault only.
    every: u64,
    calls: [AtomicU64; OPS],
    struck: AtomicU64,
    /// See [`first_handlers`] and [`most_handlers`]; 0: the process's choice.
    handlers: [u64; 2],
    /// See [`cpus`]; 0: the real number.
    cpus: u64,
}

impl Faults {
    /// Call `at` of `op`, from 0, fails.
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

    /// Also about one in `every` calls from there, the same ones each time, never two in a row. At
    /// equal distances they could meet each attempt at the same place, which no kernel does.
    pub const fn and_every(self, every: u64) -> Faults {
        Faults { every, ..self }
    }

    /// Sets the numbers of fault handler threads.
    pub const fn with_handlers(self, first: u64, most: u64) -> Faults {
        Faults { handlers: [first, most], ..self }
    }

    /// Sets the possible number of CPUs.
    pub const fn with_cpus(self, cpus: u64) -> Faults {
        Faults { cpus, ..self }
    }

    /// Operation and fault.
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
        let is_chosen = |n: u64| n == 0 || mixed(n).is_multiple_of(self.every);
        later == 0 || self.fault == Fault::Gone || self.every > 0 && is_chosen(later) && !is_chosen(later - 1)
    }

    /// Counts a call; returns its fault.
    pub fn next(&self, op: Op) -> Option<Fault> {
        let n = self.calls[op as usize].fetch_add(1, Ordering::Relaxed);
        self.strikes(op, n).then(|| {
            self.struck.store(1, Ordering::Relaxed);
            self.fault
        })
    }

    /// Counts `n` calls unless one of them fails; returns whether it did.
    pub fn pass(&self, op: Op, n: u64) -> bool {
        let whole = |begin| (begin..begin + n).all(|call| !self.strikes(op, call)).then_some(begin + n);
        self.calls[op as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, whole).is_ok()
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood, 2014).
const fn mixed(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

static INSTALLED: AtomicPtr<Faults> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the faults of this process and its forked children.
pub fn install(faults: &'static Faults) {
    // Release: pairs with the Acquire in `installed`.
    INSTALLED.store(core::ptr::from_ref(faults).cast_mut(), Ordering::Release);
}

/// The faults of this process.
pub fn installed() -> Option<&'static Faults> {
    // Acquire: pairs with the Release in `install`.
    // SAFETY: set from a `&'static Faults`, which changes only atomically.
    unsafe { INSTALLED.load(Ordering::Acquire).as_ref() }
}

/// Counts a call of this process; returns whether it fails.
pub fn fails(op: Op) -> bool {
    installed().is_some_and(|faults| faults.next(op).is_some())
}

/// Initial number of fault handler threads.
pub fn first_handlers() -> Option<usize> {
    installed().map(|faults| faults.handlers[0] as usize).filter(|first| *first > 0)
}

/// Most fault handler threads.
pub fn most_handlers() -> Option<usize> {
    installed().map(|faults| faults.handlers[1] as usize).filter(|most| *most > 0)
}

/// Possible number of CPUs.
pub fn cpus() -> Option<usize> {
    installed().map(|faults| faults.cpus as usize).filter(|cpus| *cpus > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_calls_fail_without_a_period_and_never_two_in_a_row() {
        for every in [2, 3, 7, 31] {
            let faults = Faults::new(Op::Copy, Fault::Again, 5).and_every(every);
            let strikes = |n| faults.strikes(Op::Copy, n);
            let struck = (0..5 + 400 * every).filter(|n| strikes(*n)).collect::<std::vec::Vec<_>>();
            assert!(struck[0] == 5 && (150..450).contains(&struck.len()), "{every}: {}", struck.len());
            assert!(struck.windows(2).all(|two| two[1] > two[0] + 1));
            for distance in 1..64 {
                assert!((5..5 + 200 * distance).step_by(distance as usize).any(|n| !strikes(n)), "{every}: {distance}");
            }
        }
    }
}
