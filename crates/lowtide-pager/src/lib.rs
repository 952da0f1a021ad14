//! The pager: userfaultfd, page maps, fault service and reclaim, inside the program whose memory it
//! pages.
//!
//! `reclaim/` evicts pages and `fault/` brings them back; `mappings/` follows changes of mappings,
//! `fork/` handles forks. `pagemap/` records where each page is, `pages/` holds the pages and the
//! rights to change them, `accounts/` records RAM use, and `pager/` holds it together.
//! `tests/rooms.py` has their order: a file imports from its own room and the rooms below it.
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
pub mod pages;
pub mod reclaim;
#[cfg(test)]
#[path = "../../../tests/skipped.rs"]
mod skipped;
