//! The inside of lowtide: the data structures behind swap, without userfaultfd.
//!
//! No `std`: the code runs inside other programs (lowtide-agent), where `malloc`, thread-local
//! storage and locks of the host are off limits. Memory comes from [`vm`] or the `alloc` crate,
//! whose allocator in the agent is lowtide's own.
#![no_std]
#[cfg(not(target_arch = "x86_64"))]
compile_error!("lowtide runs on x86-64 only");

extern crate alloc;
#[cfg(any(test, feature = "loom", feature = "shuttle"))]
extern crate std;

pub mod codec;
pub mod count;
pub mod cpu_groups;
pub mod device;
#[cfg(any(test, feature = "faults"))]
pub mod faults;
pub mod fill;
pub mod frame;
pub mod handshake;
pub mod kernel_text;
pub mod latency;
pub mod ledger;
mod limit;
pub mod lock;
pub mod percpu;
pub mod pool;
pub mod posts;
#[cfg(test)]
#[path = "../../../tests/skipped.rs"]
mod skipped;
pub mod slot;
pub mod steps;
pub mod store;
pub mod sync;
pub mod table;
pub mod turn;
pub mod visits;
pub mod vm;
pub mod watchers;
