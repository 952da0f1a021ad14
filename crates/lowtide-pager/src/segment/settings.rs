//! What a run was asked for, and where the processes of the run find what belongs to it: a file of its own that only `lowtide run`
//! can write. It maps the file before it seals it ([`SEALS`]); every process of the run maps it read-only, and no process, root's
//! included, can change it. So whatever is said here may be believed, whoever else belongs to the run.

use core::sync::atomic::AtomicU64;

use lowtide_core::store::MAX_AREAS;
use rustix::fs::SealFlags;

/// The seals of the file of the settings: the mapping that `lowtide run` has made is the last through which it can be written.
/// Who finds a file without them has not found the settings of a run.
pub const SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// `Settings::when_full`: go over the limit with one warning.
pub const WHEN_FULL_EXCEED: u32 = 0;
/// `Settings::when_full`: stop the program with a message.
pub const WHEN_FULL_STOP: u32 = 1;

/// `Settings::codec`: LZ4.
pub const CODEC_LZ4: u32 = 0;
/// `Settings::codec`: zstd at `Settings::codec_level`.
pub const CODEC_ZSTD: u32 = 1;

/// `SwapArea::kind`: there is no such area.
pub const SWAP_NONE: u32 = 0;
/// `SwapArea::kind`: each process has an unnamed file in `SwapArea::dir`.
pub const SWAP_DIR: u32 = 1;
/// `SwapArea::kind`: `SwapArea::file`, which is the process's that claims it (`AreaBudget::claimed`), the largest when the limit is near; the
/// others have unnamed files in `SwapArea::dir`.
pub const SWAP_FILE: u32 = 2;

/// A swap area of the run. Without any, evicted pages stay in compressed RAM.
#[repr(C)]
pub struct SwapArea {
    /// Most bytes of all its files together.
    pub size: u64,
    /// One of the `SWAP_` values.
    pub kind: u32,
    /// Areas of higher priority are used first; those of the same in turn.
    pub prio: i16,
    /// 1: the space of free clusters goes back to the file system.
    pub discard: u16,
    /// Directory of the unnamed files, absolute, NUL-terminated. Empty: there are none (`file` is a block device).
    pub dir: [u8; 1024],
    /// The named file, as a descriptor of `lowtide run` (`/proc/PID/fd/N`), which holds its lock. NUL-terminated.
    pub file: [u8; 64],
    /// What the user calls it, for messages. NUL-terminated.
    pub file_name: [u8; 256],
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

/// The settings of a run. Written by `lowtide run` before the program starts, except for the atomics, which it may change later.
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
    /// Pool limit of the whole tree in bytes.
    pub pool_limit: AtomicU64,
    /// One of the `CODEC_` values.
    pub codec: u32,
    /// zstd level; 0 is zstd's default.
    pub codec_level: i32,
    /// One of the `WHEN_FULL_` values.
    pub when_full: u32,
    /// 1: agents say on the program's standard error what they adopt and why.
    pub verbose: u32,
    /// The swap areas, in the order in which they were given.
    pub swap: [SwapArea; MAX_AREAS],
    /// The value that LD_PRELOAD must begin with, NUL-terminated: agents put it back in front when the program changes it.
    pub preload: [u8; 64],
    /// The file that it leads to as long as `lowtide run` lives (afterwards its pid may be another's).
    pub agent: FileId,
    /// The pid namespace of `lowtide run`.
    pub pid_namespace: FileId,
    /// Name of the socket (in the abstract name space) on which `lowtide run` answers its descendants, NUL-terminated: see
    /// [`crate::broker`]. Empty: there is none.
    pub broker: [u8; 32],
    /// The path of the segment, a descriptor of `lowtide run`, NUL-terminated.
    pub segment: [u8; 64],
}

impl Settings {
    /// Bytes to map.
    pub const SIZE: usize = size_of::<Settings>().next_multiple_of(4096);
}
