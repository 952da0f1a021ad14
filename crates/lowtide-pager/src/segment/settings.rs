//! What a run was asked for, and where the processes of the run find what belongs to it: a file of its own that only `lowtide
//! run` can write. It maps the file before it seals it ([`SEALS`]); every process of the run maps it read-only, and no process,
//! root's included, can change it. So whatever is said here may be believed, whoever else belongs to the run.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use lowtide_core::store::MAX_AREAS;
use lowtide_core::vm::PAGE_SIZE;
use rustix::fs::SealFlags;

/// The seals of the file of the settings: the mapping that `lowtide run` has made is the last through which it can be written.
/// A file without them is not the settings of a run.
pub const SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// `Settings::when_full`: go over the limit with one warning.
pub const WHEN_FULL_EXCEED: u32 = 0;
/// `Settings::when_full`: stop the program with a message.
pub const WHEN_FULL_STOP: u32 = 1;

/// `Settings::codec`: LZ4.
pub const CODEC_LZ4: u32 = 0;
/// `Settings::codec`: zstd at `Settings::codec_level`.
pub const CODEC_ZSTD: u32 = 1;

/// `Settings::faults`: fault handler threads serve them.
pub const FAULTS_BY_MONITORS: u32 = 0;
/// `Settings::faults`: each thread its own, in processes that have many, where `lowtide run` can have the kernel tell it.
pub const FAULTS_AS_CAN_BE: u32 = 1;
/// `Settings::faults`: each thread its own.
pub const FAULTS_IN_THREAD: u32 = 2;

/// `Settings::slots`: one lock for the whole area, with a cache of slots for each CPU.
pub const SLOTS_AREA_LOCK: u32 = u32::MAX;

/// `AreaSpec::kind`: there is no such area.
pub const SWAP_NONE: u32 = 0;
/// `AreaSpec::kind`: each process has an unnamed file in `AreaSpec::dir`.
pub const SWAP_DIR: u32 = 1;
/// `AreaSpec::kind`: `AreaSpec::file`, which is the process's that claims it (`AreaBudget::claimed`), the largest when the
/// limit is near; the others have unnamed files in `AreaSpec::dir`.
pub const SWAP_FILE: u32 = 2;
/// `AreaSpec::kind`: a server in the network, which `lowtide run` talks to at the socket with the name `AreaSpec::file`.
pub const SWAP_REMOTE: u32 = 3;

/// What the processes of the run are to do about a swap area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// There is no such area.
    Absent,
    /// Each process has it, and puts pages there.
    On,
    /// Each process takes its pages off, and closes its file.
    Off,
}

/// A phase of a swap area, with a number that tells it from all other phases that the place has ever had. A process that has
/// done what is asked repeats it in [`super::AreaGauges::order`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order(u64);

impl Order {
    /// As [`SwapArea::order`] has it.
    pub const fn from_raw(raw: u64) -> Order {
        Order(raw)
    }

    /// For [`SwapArea::order`].
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// What is to be done.
    pub const fn phase(self) -> Phase {
        match self.0 & 3 {
            1 => Phase::On,
            2 => Phase::Off,
            _ => Phase::Absent,
        }
    }

    /// The order after this one.
    #[must_use]
    pub const fn next(self, phase: Phase) -> Order {
        let phase = match phase {
            Phase::Absent => 0,
            Phase::On => 1,
            Phase::Off => 2,
        };
        Order((self.0 >> 2).wrapping_add(1) << 2 | phase)
    }
}

/// A swap area of the run. Without any, evicted pages stay in compressed RAM.
#[repr(C)]
pub struct SwapArea {
    /// An [`Order`].
    pub order: AtomicU64,
    spec: UnsafeCell<AreaSpec>,
}

// SAFETY: `spec` changes only as `rewrite` says.
unsafe impl Sync for SwapArea {}

/// What a swap area is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AreaSpec {
    /// Most bytes of all its files together.
    pub size: u64,
    /// One of the `SWAP_` values.
    pub kind: u32,
    /// Areas of higher priority are used first; those of the same in turn.
    pub prio: i16,
    /// 1: the space of free clusters goes back to the file system.
    pub discard: u8,
    /// 1: the device turns, so that all threads of a process write one sequence.
    pub rotating: u8,
    /// Directory of the unnamed files, absolute, NUL-terminated. Empty: there are none (`file` is a block device).
    pub dir: [u8; 1024],
    /// The named file, as a descriptor of `lowtide run` (`/proc/PID/fd/N`), which holds its lock. Or the name of the socket (in
    /// the abstract name space) by which `lowtide run` takes pages for a server. NUL-terminated.
    pub file: [u8; 64],
    /// What the user calls it, for messages. NUL-terminated.
    pub file_name: [u8; 256],
}

impl Default for AreaSpec {
    fn default() -> AreaSpec {
        AreaSpec {
            size: 0,
            kind: SWAP_NONE,
            prio: 0,
            discard: 0,
            rotating: 0,
            dir: [0; 1024],
            file: [0; 64],
            file_name: [0; 256],
        }
    }
}

impl SwapArea {
    /// What the processes are to do about it now.
    pub fn order(&self) -> Order {
        // Acquire: pairs with the Release in `give`, before which the area was described.
        Order(self.order.load(Ordering::Acquire))
    }

    /// Whether pages go there.
    pub fn is_on(&self) -> bool {
        self.order().phase() == Phase::On
    }

    /// What it is; to be asked by those who have seen that it is on, or off.
    pub fn spec(&self) -> &AreaSpec {
        // SAFETY: changed only while nobody has a reference: see `rewrite`. Any bytes are an AreaSpec.
        unsafe { &*self.spec.get() }
    }

    /// `lowtide run`: gives the next order; returns it.
    pub fn give(&self, phase: Phase) -> Order {
        let next = self.order().next(phase);
        // Release: pairs with the Acquire in `order`.
        self.order.store(next.raw(), Ordering::Release);
        next
    }

    /// `lowtide run`: describes another area, before it is turned on.
    ///
    /// # Safety
    /// The place must never have been on, or every process of the run, and this one, must be done with what was there
    /// ([`Phase::Off`] is complied with).
    pub unsafe fn rewrite(&self, spec: &AreaSpec) {
        // SAFETY: the caller answers.
        unsafe { *self.spec.get() = *spec };
    }
}

/// Which file it is, whatever path leads to it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// Its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// How much is to be moved out at once, by all processes together, whether the limit is reached or not.
#[repr(C)]
pub struct Reclaim {
    /// Another number for each request. Written last.
    pub number: AtomicU64,
    /// Bytes of the program's pages; each process takes its part.
    pub bytes: AtomicU64,
    /// What the whole run used then.
    pub of: AtomicU64,
}

/// The settings of a run. Written by `lowtide run` before the program starts, except for the atomics, which it may change
/// later.
#[repr(C)]
pub struct Settings {
    /// [`super::MAGIC`].
    pub magic: u64,
    /// [`super::VERSION`].
    pub version: u32,
    /// Pid of `lowtide run`.
    pub supervisor: u32,
    /// RAM limit of the whole tree in bytes.
    pub ram_limit: AtomicU64,
    /// While the run still uses more than a limit that was lowered, the bytes that it may not exceed meanwhile; else not more
    /// than the limit. It follows what the run uses down, so that the program need not wait until all that is too much is out.
    pub ram_ceiling: AtomicU64,
    /// Pool limit of the whole tree in bytes.
    pub pool_limit: AtomicU64,
    /// See there.
    pub reclaim: Reclaim,
    /// Another number for each time that the processes are asked how much of their memory can't be moved out
    /// ([`super::Proc::fixed_bytes`]).
    pub question: AtomicU64,
    /// One more for each time that the processes are asked how full the clusters of their swap areas are
    /// ([`super::Proc::fills`]).
    pub fills_asked: AtomicU64,
    /// One of the `CODEC_` values.
    pub codec: u32,
    /// The level of zstd; 0 for LZ4.
    pub codec_level: i32,
    /// One of the `WHEN_FULL_` values.
    pub when_full: u32,
    /// What is asked of userfaultfd: [`crate::sys::uffd::NEEDED_FEATURES`], and what the kernel has beside that lowtide uses.
    pub features: u64,
    /// One of the `FAULTS_` values.
    pub faults: u32,
    /// 1: agents make the moves of programs without hooks, of which a filter tells ([`crate::sys::call_filter`]).
    pub makes_moves: u32,
    /// 1: agents say on the program's standard error what they adopt and why.
    pub verbose: u32,
    /// 1: writes to what forks share wait for room ([`crate::pager::Pager::protect_shared`]), an experiment.
    pub watch_copies: u32,
    /// How areas find slots, with the feature `lab`: 0: as always; one more than a place in lowtide-core's `Policy::ALL`; or
    /// [`SLOTS_AREA_LOCK`].
    pub slots: u32,
    /// Order of the largest folio, with the feature `lab`.
    pub folio_order: u32,
    /// The swap areas, in the order in which they were given.
    pub swap: [SwapArea; MAX_AREAS],
    /// The value that LD_PRELOAD must begin with, NUL-terminated: agents put it back in front when the program changes it.
    pub preload: [u8; 64],
    /// The file that it leads to as long as `lowtide run` lives (afterwards its pid may be another's).
    pub agent: FileId,
    /// The pid namespace of `lowtide run`.
    pub pid_namespace: FileId,
    /// Name of the socket (in the abstract name space) on which `lowtide run` answers its descendants, NUL-terminated: see
    /// [`crate::sys::broker`]. Empty: there is none.
    pub broker: [u8; 32],
    /// The path of the segment, a descriptor of `lowtide run`, NUL-terminated.
    pub segment: [u8; 64],
}

impl Settings {
    /// Bytes to map.
    pub const SIZE: usize = size_of::<Settings>().next_multiple_of(PAGE_SIZE);
}
