//! The pager: userfaultfd, page maps, fault service and reclaim. It runs inside the program whose memory it pages.
//!
//! The way of a page: out by `hand.rs` (which), `detach.rs` (from its place into staging), `evict.rs` (when) and `drain.rs`
//! (from staging into the store), in by `fault/`; `events.rs` follows what the program does to its mappings meanwhile,
//! `fork/` what happens when it forks.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod adoptable;
pub mod backoff;
pub mod broker;
pub mod budget;
pub mod clock;
pub mod depth;
mod detach;
pub mod drain;
pub mod events;
pub mod evict;
pub mod fault;
pub mod fork;
pub mod guards;
mod hand;
pub mod held;
pub mod ids;
pub mod line;
pub mod locks;
pub mod mapping;
pub mod measuring;
pub mod monitor;
mod order;
pub mod pagemap;
pub mod pager;
pub mod patience;
pub mod pool_share;
pub mod present;
pub mod ranges;
pub mod regions;
mod release;
pub mod segment;
pub mod share;
pub mod space;
pub mod staging;
mod stale;
pub mod stat;
pub mod stream;
pub mod swapoff;
mod transitions;
mod traps;
pub mod uffd;
pub mod worker;
pub mod yields;
mod zeros;
