//! Errors, in one line each, with what to do.

use std::fmt;

use rustix::io::Errno;

use lowtide_config::size;

/// A failed call. `Display` gives one line: the reason and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A region or a range of no bytes.
    Empty,
    /// More bytes than the address space.
    TooLarge {
        /// The requested size.
        bytes: usize,
    },
    /// No RAM limit was given.
    NoLimit,
    /// A RAM limit too small to work in, or for what guards keep in memory.
    RamTooSmall {
        /// The requested limit, in bytes.
        ram: u64,
        /// The minimum.
        least: u64,
    },
    /// A RAM limit, swap or delivery for a region in an existing group.
    GroupHasItsOwn,
    /// A range outside the region.
    OutOfRange {
        /// The first byte.
        start: usize,
        /// The end.
        end: usize,
        /// The region's size.
        len: usize,
    },
    /// More guarded memory than half of the group's RAM.
    TooMuchResident {
        /// Guarded bytes with this request.
        bytes: u64,
        /// The maximum.
        most: u64,
    },
    /// A guard keeps a part in memory.
    Guarded,
    /// The region, or group, is the parent process's.
    Forked,
    /// The program runs under `lowtide run`.
    UnderRun,
    /// An unusable swap place.
    Swap(String),
    /// A level that the codec lacks.
    Codec {
        /// The level.
        level: i32,
    },
    /// An unknown delivery.
    UnknownDelivery {
        /// Its number.
        number: i32,
    },
    /// The kernel refuses this program the needed kind of userfaultfd.
    Userfaultfd {
        /// The kernel's error.
        errno: Errno,
        /// Whether for the kernel's accesses too ([`crate::Delivery::Monitor`]).
        full: bool,
    },
    /// A stored page can't be read back.
    Lost,
    /// Another refusal of the kernel.
    System {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Empty => f.write_str("a size of zero: a region, and a range of it, has at least one byte"),
            Error::TooLarge { bytes } => {
                write!(f, "{bytes} bytes are more than there is address space for: make the region smaller")
            }
            Error::NoLimit => f.write_str("no RAM limit is given: say ram(BYTES), or give a group that has one"),
            Error::RamTooSmall { ram, least } => {
                write!(f, "a RAM limit of {} is too small: at least {} is needed", size::show(*ram), size::show(*least))
            }
            Error::GroupHasItsOwn => {
                f.write_str("a region of a group has the group's RAM limit, swap and delivery: set them on the group only")
            }
            Error::OutOfRange { start, end, len } => {
                write!(f, "the range {start}..{end} is not in the region, which has {len} bytes")
            }
            Error::TooMuchResident { bytes, most } => write!(
                f,
                "{} can't stay in memory at a time, {} can (half of the RAM limit): take a smaller range, or raise the limit",
                size::show(*bytes),
                size::show(*most)
            ),
            Error::Guarded => f.write_str("a guard keeps a part of it in memory: drop the guard first"),
            Error::Forked => f.write_str(
                "the region belongs to the parent process, and a fork does not copy it: make another one in this process",
            ),
            Error::UnderRun => f.write_str(
                "under `lowtide run` all memory of the program is limited already: run it without, or use ordinary memory",
            ),
            Error::Swap(why) => write!(f, "swap {why}"),
            Error::Codec { level } => write!(f, "zstd has no level {level}: use -7 to -1 or 1 to 22"),
            Error::UnknownDelivery { number } => {
                write!(f, "{number} is no delivery: use 0 (in-thread), 1 (monitor) or 2 (user monitor)")
            }
            Error::Userfaultfd { errno: Errno::NOSYS, .. } => {
                f.write_str("this kernel has no userfaultfd: boot one that is built with CONFIG_USERFAULTFD")
            }
            Error::Userfaultfd { errno: Errno::INVAL, .. } => {
                f.write_str("this kernel's userfaultfd is too old (user mode, UFFDIO_MOVE): boot Linux 6.8 or later")
            }
            Error::Userfaultfd { errno: Errno::PERM | Errno::ACCESS, full: true } => f.write_str(
                "no privilege to serve the kernel's own accesses: use in-thread delivery, which needs none, \
                 or run `sysctl vm.unprivileged_userfaultfd=1` as root",
            ),
            Error::Userfaultfd { errno: Errno::PERM | Errno::ACCESS, full: false } => {
                f.write_str("a filter of system calls (a container's?) forbids userfaultfd: allow it there")
            }
            Error::Userfaultfd { errno, .. } => write!(f, "userfaultfd fails ({errno}): `lowtide doctor` says more"),
            Error::Lost => {
                f.write_str("a page can't be read back from swap, as was said on standard error: its bytes are lost")
            }
            Error::System { what, errno } => write!(f, "{what} failed: {errno}"),
        }
    }
}
