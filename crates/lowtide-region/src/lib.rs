//! Regions of memory that may be larger than RAM, for one program, without root. The pages of a region that have not been used
//! for a while are compressed in RAM, then written to an unnamed file, and come back when a thread touches them.
//!
//! **System calls.** A page that is out comes back when a *thread* touches it. When the *kernel* does, because a slice of a
//! region was given to `read`, `write`, `sendfile` or the like, the call fails with `EFAULT` ("Bad address"), or moves fewer
//! bytes than it was asked to. The remedy: hold [`Region::resident`] for the range during the call, or choose
//! [`Delivery::Monitor`], with which system calls wait as threads do and for which a privilege is needed. Code that only
//! computes needs neither.
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
//! Linux 6.8 or later on 64-bit x86, and no privilege, unless [`Delivery::Monitor`] is chosen. Pages of 4 KiB.
//!
//! # Limits and groups
//! A [`Group`] has one RAM limit: pages of its regions that are in memory, compressed ones, and all that lowtide needs for
//! them. Who brings pages in makes room first. Pages on their way into the pool are in two places until they are there, so
//! for a moment [`Stats::ram_now`] can be more than the limit, by up to a MiB where one thread touches the group's pages,
//! and 256 KiB for each other that does at the same time. A region that names no group is alone in one. Each group has a
//! thread (`lowtide-reclaim`) that works while the group is near its limit. When a group ends, its memory goes back to the
//! system but for the part of its tables that was touched, which the next group of the same kind (codec, swap, delivery,
//! order of size of the limit) uses.
//!
//! A group costs four descriptors, a thread, and for each CPU two stacks and buffers with which faults are served (4 at least,
//! 32 at most), of which only what is used takes memory: a few MiB of its limit. Many small regions belong in one group.
//!
//! # Servers
//! With the feature `remote`, pages of a group may go to a Valkey or Redis server, or a cluster ([`Swap::Server`]). Threads of this
//! process speak to it (`lowtide-pages` and others, up to eight), with some MiB of memory that do not count against the limit. When
//! the group ends its pages are removed there, for which the thread that drops it waits up to five seconds; those of a process that
//! is killed, or ends with a group, stay until a group or run with that server comes, or `lowtide remote clean`, ten minutes later at
//! the earliest. The program's allocator must give out no memory of such a region: these threads allocate.
//!
//! # SIGBUS
//! With [`Delivery::InThread`] the thread that touches a missing page brings it in itself, in a handler of SIGBUS. That works
//! in any thread, on any stack that has room for a signal frame (the rest is done on stacks of lowtide's own), and in signal
//! handlers. The handler is installed with the first group; what was installed before is called for addresses that are no
//! region's. A program that installs a handler of SIGBUS *after* that must call the earlier one for such faults. A thread that
//! *blocks* SIGBUS (`sigfillset`, also in the mask of a signal handler) and touches a missing page is ended by the kernel, with
//! the process: leave SIGBUS out of such masks, or use [`Delivery::UserMonitor`]. A debugger stops at each SIGBUS: `handle
//! SIGBUS nostop noprint` in gdb.
//!
//! SIGSEGV, SIGILL, SIGFPE, SIGTRAP and SIGSYS are not blocked while lowtide works, because a thread that raises one while it
//! is blocked is ended. Their handlers must not touch a region, in case somebody *sends* such a signal (`kill`) at that moment.
//!
//! The kernel touches more than the buffers of `read` and `write`: locks and condition variables that sleep (futex), thread
//! stacks and alternate signal stacks, buffers of io_uring that are in flight. Such things must not be in a region without a
//! guard.
//!
//! # Descriptors
//! A group has some descriptors in this process. A program that closes descriptors that are not its own (`closefrom`) takes
//! them away, and a file that is opened next may get the number of the swap file.
//!
//! # Forks
//! A forked child has none of the parent's regions: touching one there is SIGSEGV, and calls on it fail with [`Error::Forked`].
//! It may make regions of its own. (`vfork` and `posix_spawn` are no matter.) In a child of `_Fork()` or of the bare system
//! call no handler of forks runs: it has none of the regions either, and must not make any.
//!
//! # When a page can't be read back
//! A swap file that fails, or whose bytes are not what was written there, is reported on standard error, and the thread that
//! touched the page gets SIGBUS, as from a mapped file that can't be read. So is a server that does not answer in time. It never reads other bytes than were written.
//! Contradictions in lowtide's own tables, which must not be, abort the process with a message.
//!
//! # What one must not do with a region's memory
//! Unmap it, move it (`mremap`), or drop pages with `madvise`: [`Region::drop_range`] does that. Lock it with `mlock` or
//! `mlockall`: a guard does that. Give it to another userfaultfd.

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
