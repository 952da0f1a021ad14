//! The pager: userfaultfd, page maps, fault service and reclaim. It runs inside the program whose memory it pages.
//!
//! A page leaves by `reclaim/` and comes back by `fault/`; `mappings/` follows what the program does to its mappings meanwhile,
//! `fork/` what happens when it forks. `pagemap/` says where each page is, `accounts/` who has how much RAM, `segment/` what
//! all processes of a run share, `sys/` is what is asked of the kernel, and `pager/` holds all of it together.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod accounts;
pub mod fault;
pub mod fork;
pub mod mappings;
pub(crate) mod pagemap;
pub mod pager;
pub mod reclaim;
pub mod segment;
#[cfg(test)]
#[path = "../../../tests/skipped.rs"]
mod skipped;
pub mod sys;
