//! A run's settings, in a memfd mapped by `lowtide run` before sealing ([`SEALS`]): other
//! processes, root's included, can only read it, so it can be trusted.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use lowtide_core::store::MAX_AREAS;
use lowtide_core::vm::PAGE_SIZE;
use rustix::fs::SealFlags;

/// Seals against new writable mappings; agents require them.
pub const SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// `Settings::when_full`: exceed the limit with one warning.
pub const WHEN_FULL_EXCEED: u32 = 0;
/// `Settings::when_full`: stop the program with a message.
pub const WHEN_FULL_STOP: u32 = 1;

/// `Settings::codec`: LZ4.
pub const CODEC_LZ4: u32 = 0;
/// `Settings::codec`: zstd at `Settings::codec_level`.
pub const CODEC_ZSTD: u32 = 1;

/// `Settings::faults`: served by handler threads.
pub const FAULTS_BY_HANDLERS: u32 = 0;
/// `Settings::faults`: by the faulting thread in processes with many threads, if `lowtide run` can
/// have the kernel report faults.
pub const FAULTS_AS_CAN_BE: u32 = 1;
/// `Settings::faults`: served by the faulting thread.
pub const FAULTS_IN_THREAD: u32 = 2;

/// `Settings::slots`: a lock for each area and a slot cache for each CPU.
pub const SLOTS_AREA_LOCK: u32 = u32::MAX;

/// `AreaSpec::kind`: no area.
pub const SWAP_NONE: u32 = 0;
/// `AreaSpec::kind`: an unnamed file for each process in `AreaSpec::dir`.
pub const SWAP_DIR: u32 = 1;
/// `AreaSpec::kind`: `AreaSpec::file` for its claimant (`AreaBudget::claimed`), the largest process
/// near the limit; unnamed files in `AreaSpec::dir` for others.
pub const SWAP_FILE: u32 = 2;
/// `AreaSpec::kind`: a network server behind `lowtide run`'s socket `AreaSpec::file`.
pub const SWAP_REMOTE: u32 = 3;

/// Orders for a swap area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No area.
    Absent,
    /// Use the area.
    On,
    /// Empty and close it.
    Off,
}

/// A phase with a number unique for its area, repeated in [`super::AreaGauges::order`] when carried
/// out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order(u64);

impl Order {
    /// From [`SwapArea::order`].
    pub const fn from_raw(raw: u64) -> Order {
        Order(raw)
    }

    /// For [`SwapArea::order`].
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The phase ordered.
    pub const fn phase(self) -> Phase {
        match self.0 & 3 {
            1 => Phase::On,
            2 => Phase::Off,
            _ => Phase::Absent,
        }
    }

    /// The next order.
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

/// A swap area; without any, evicted pages stay in compressed RAM.
#[repr(C)]
pub struct SwapArea {
    /// An [`Order`].
    pub order: AtomicU64,
    spec: UnsafeCell<AreaSpec>,
}

// SAFETY: `spec` changes only by `rewrite`.
unsafe impl Sync for SwapArea {}

/// Description of a swap area.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AreaSpec {
    /// Bytes of all its files.
    pub size: u64,
    /// One of the `SWAP_` values.
    pub kind: u32,
    /// Higher ones first, equal ones in turn.
    pub prio: i16,
    /// 1: discard free clusters.
    pub discard: u8,
    /// 1: rotational, so threads share one write sequence.
    pub rotating: u8,
    /// Directory of unnamed files, absolute, NUL-terminated. Empty: none are made (a block device,
    /// a server).
    pub dir: [u8; 1024],
    /// The named file, a locked descriptor of `lowtide run` (`/proc/PID/fd/N`), or its abstract
    /// socket. NUL-terminated.
    pub file: [u8; 64],
    /// The user's name for it, NUL-terminated.
    pub name: [u8; 256],
}

impl Default for AreaSpec {
    fn default() -> AreaSpec {
        AreaSpec { size: 0, kind: SWAP_NONE, prio: 0, discard: 0, rotating: 0, dir: [0; 1024], file: [0; 64], name: [0; 256] }
    }
}

impl SwapArea {
    /// The current order.
    pub fn order(&self) -> Order {
        // Acquire: pairs with the Release in `give`, after the description.
        Order(self.order.load(Ordering::Acquire))
    }

    /// Whether it accepts pages.
    pub fn is_on(&self) -> bool {
        self.order().phase() == Phase::On
    }

    /// The description; see the order first.
    pub fn spec(&self) -> &AreaSpec {
        // SAFETY: `rewrite` excludes references. Any bytes are an AreaSpec.
        unsafe { &*self.spec.get() }
    }

    /// For `lowtide run`: gives the next order.
    pub fn give(&self, phase: Phase) -> Order {
        let next = self.order().next(phase);
        // Release: pairs with the Acquire in `order`.
        self.order.store(next.raw(), Ordering::Release);
        next
    }

    /// For `lowtide run`: describes another area before turning it on.
    ///
    /// # Safety
    /// It was never on, or every process of the run, this one included, has complied with
    /// [`Phase::Off`].
    pub unsafe fn rewrite(&self, spec: &AreaSpec) {
        // SAFETY: the caller's obligation.
        unsafe { *self.spec.get() = *spec };
    }
}

/// A file's identity.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// Device of the file system.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// A request to evict now.
#[repr(C)]
pub struct Reclaim {
    /// Changes with each request; written last.
    pub number: AtomicU64,
    /// Bytes to evict, shared by the processes.
    pub bytes: AtomicU64,
    /// Bytes used by the run then.
    pub of: AtomicU64,
}

/// A run's settings; after the program starts only atomics change, and [`SwapArea::rewrite`]'s
/// data.
#[repr(C)]
pub struct Settings {
    /// [`super::MAGIC`].
    pub magic: u64,
    /// [`super::VERSION`].
    pub version: u32,
    /// Pid of `lowtide run`.
    pub supervisor: u32,
    /// The run's RAM limit in bytes.
    pub ram_limit: AtomicU64,
    /// Bytes allowed while the run shrinks to a lowered limit, otherwise at most the limit. It
    /// follows the use down, so the program need not wait for all of it.
    pub ram_ceiling: AtomicU64,
    /// The run's pool limit in bytes.
    pub pool_limit: AtomicU64,
    /// 1: the user gave the pool's limit.
    pub pool_is_given: u32,
    /// The latest request.
    pub reclaim: Reclaim,
    /// Asks for [`super::Proc::fixed_bytes`] when incremented.
    pub question: AtomicU64,
    /// Asks for [`super::Proc::fills`] when incremented.
    pub fills_asked: AtomicU64,
    /// One of the `CODEC_` values.
    pub codec: u32,
    /// zstd level; 0 for LZ4.
    pub codec_level: i32,
    /// One of the `WHEN_FULL_` values.
    pub when_full: u32,
    /// One of the `FAULTS_` values.
    pub faults: u32,
    /// 1: the filter tells of calls that change memory, too ([`crate::call_filter`]).
    pub tells_changes: u32,
    /// 1: agents explain registration on standard error.
    pub verbose: u32,
    /// With feature `lab`: 0: default; 1 + index into lowtide-core's `Policy::ALL`; or
    /// [`SLOTS_AREA_LOCK`].
    pub slots: u32,
    /// Largest folio order, with feature `lab`.
    pub folio_order: u32,
    /// Swap areas, in command line order.
    pub swap: [SwapArea; MAX_AREAS],
    /// First entry of LD_PRELOAD, which agents restore. NUL-terminated.
    pub preload: [u8; 64],
    /// The agent's file, valid while `lowtide run` lives.
    pub agent: FileId,
    /// Pid namespace of `lowtide run`.
    pub pid_namespace: FileId,
    /// `lowtide run`'s abstract socket for descendants ([`crate::broker`]), NUL-terminated.
    /// Empty: none.
    pub broker: [u8; 32],
    /// The segment's path, NUL-terminated.
    pub segment: [u8; 64],
}

impl Settings {
    /// Bytes to map.
    pub const SIZE: usize = size_of::<Settings>().next_multiple_of(PAGE_SIZE);
}
