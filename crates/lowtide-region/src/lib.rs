//! Regions of memory that may be larger than RAM, for one program, without root. Unused pages are
//! compressed in RAM, then written to an unnamed file, and come back when a thread touches them.
//!
//! **System calls.** If the *kernel* touches an evicted page, for `read`, `write`, `sendfile` or
//! the like on a slice of a region, the call fails with `EFAULT` ("Bad address"), or moves fewer
//! bytes. Hold [`Region::resident`] for the range, or choose [`Delivery::Monitor`], with which
//! system calls wait like threads, but which needs a privilege. Pure computation needs neither.
//!
//! ```
//! use lowtide_region::{Region, Swap};
//!
//! // 64 MiB that take no more than 16 MiB of RAM.
//! let mut region = Region::builder(64 << 20).ram(16 << 20).swap(Swap::Auto).build()?;
//! for (i, chunk) in region.as_mut_slice().chunks_mut(4096).enumerate() {
//!     chunk[..8].copy_from_slice(&i.to_le_bytes());
//! }
//! assert!(region.as_slice().chunks(4096).enumerate().all(|(i, chunk)| chunk[..8] == i.to_le_bytes()));
//! let stats = region.stats()?;
//! assert!(stats.pages_out > 0 && stats.ram_now <= stats.ram_limit + (1 << 20));
//! # Ok::<(), lowtide_region::Error>(())
//! ```
//!
//! # What it needs
//! Linux 6.8 or later on 64-bit x86 with 4 KiB pages; privilege only for [`Delivery::Monitor`].
//!
//! # Limits and groups
//! A [`Group`] has one RAM limit for its pages in memory, compressed ones, and all of lowtide's
//! memory for them. A page on its way into the pool counts twice, so [`Stats::ram_now`] can briefly
//! exceed the limit, by up to 1 MiB for one faulting thread and 256 KiB for each other. A region
//! without a group gets its own. A group's memory returns to the system at its end, except touched
//! parts of its tables, which the next group of the same kind (codec, swap, delivery, order of the
//! limit) uses.
//!
//! A group costs four descriptors, a thread (`lowtide-reclaim`), and per CPU (4 to 32) two stacks
//! and buffers for faults: a few MiB of the limit. Many small regions belong in one group.
//!
//! # Servers
//! With the feature `remote`, pages of a group may go to a Valkey or Redis server or cluster
//! ([`Swap::Server`]). Up to eight threads of this process (`lowtide-pages` and others) speak to
//! it, with a few MiB outside the limit. The end of a group removes its pages there, within five
//! seconds. Pages of killed processes stay until a group or run with that server, or `lowtide
//! remote clean`, removes them, ten minutes later at the earliest. These threads allocate, so the
//! program's allocator must not use such a region.
//!
//! # SIGBUS
//! With [`Delivery::InThread`] a handler of SIGBUS brings missing pages in: in any thread, in
//! signal handlers, and on any stack with room for a signal frame. The first group installs it; the
//! previous handler gets other addresses. A SIGBUS handler installed *later* must call the earlier
//! one for such faults. If a thread that *blocks* SIGBUS (`sigfillset`, also in a handler's mask)
//! touches a missing page, the kernel ends the process: leave SIGBUS out of such masks, or use
//! [`Delivery::UserMonitor`]. In gdb: `handle SIGBUS nostop noprint`.
//!
//! lowtide does not block SIGSEGV, SIGILL, SIGFPE, SIGTRAP and SIGSYS, because raising a blocked
//! one is fatal. Their handlers must not touch a region, in case a process *sends* such a signal.
//!
//! The kernel also touches sleeping locks and condition variables (futex), thread stacks, alternate
//! signal stacks, and io_uring buffers in flight. Keep these out of a region without a guard.
//!
//! # Descriptors
//! `closefrom` and the like also close a group's descriptors; the next opened file may then get the
//! swap file's number.
//!
//! # Forks
//! A forked child has none of the parent's regions: touching one raises SIGSEGV, and calls fail
//! with [`Error::Forked`]. It may make its own, except a child of `_Fork()` or of the bare system
//! call, where no fork handlers run. (`vfork` and `posix_spawn` are safe.)
//!
//! # When a page can't be read back
//! If a swap file fails or returns other bytes than written, or a server does not answer in time,
//! lowtide reports it on standard error, and the touching thread gets SIGBUS; it never reads wrong
//! bytes. Contradictions in lowtide's own tables abort the process with a message.
//!
//! # What one must not do with a region's memory
//! Unmap it, move it (`mremap`), drop pages with `madvise` (use [`Region::drop_range`]), lock it
//! (`mlock`, `mlockall`; use a guard), or give it to another userfaultfd.

mod addresses;
#[cfg(test)]
mod addresses_tests;
mod bell;
mod builder;
mod error;
mod fork;
mod group;
mod instance;
mod pins;
mod reclaimer;
mod region;
mod registry;
mod resident;
#[cfg_attr(not(feature = "remote"), path = "no_server.rs")]
mod server;
mod sigbus;
mod signals;
mod stats;
mod swap;
mod sync;

pub use builder::Builder;
pub use error::Error;
pub use group::{Group, GroupBuilder};
pub use instance::Delivery;
pub use lowtide_config::ram::LEAST as LEAST_RAM;
pub use lowtide_core::codec::Codec;
pub use region::Region;
pub use resident::Resident;
pub use stats::Stats;
pub use swap::Swap;
