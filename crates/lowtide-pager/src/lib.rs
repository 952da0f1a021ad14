//! The pager: userfaultfd, page maps, fault service and reclaim. It runs inside the program whose memory it pages.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod segment;
