//! Page faults told by a signal: BPF programs where the kernel hands a fault to userfaultfd.
//!
//! A program at the entry of the kernel's `handle_userfault` sends the thread that faults a signal, whose handler serves the
//! fault in the same thread. What can't be served there becomes a record in a ring of the process, which wakes the thread of
//! lowtide's that waits at it. `docs/design/in-thread.md` has the whole.
//!
//! [`record`], [`ring`] and [`slot`] are what a process reads that faults: no `std`, no allocation, no call of the kernel. The
//! rest (the feature `load`) is for the process that loads the programs, which has the privileges and all maps.

#![cfg_attr(not(feature = "load"), no_std)]

pub mod record;
pub mod ring;
pub mod slot;

/// The signal: SIGSTKFLT, which no kernel for 64-bit x86 sends. It has no queue that could be full.
pub const SIGNAL: i32 = 16;

#[cfg(feature = "load")]
mod assembler;
#[cfg(feature = "load")]
mod btf;
#[cfg(feature = "load")]
mod call;
#[cfg(feature = "load")]
mod emit;
#[cfg(feature = "load")]
mod error;
#[cfg(feature = "load")]
mod kernel;
#[cfg(feature = "load")]
mod maps;
#[cfg(feature = "load")]
mod memory;
#[cfg(feature = "load")]
mod notifier;
#[cfg(feature = "load")]
mod program;
#[cfg(all(test, feature = "load"))]
#[path = "../../../tests/skipped.rs"]
mod skipped;

#[cfg(feature = "load")]
pub use error::Error;
#[cfg(feature = "load")]
pub use maps::{ProcessMaps, Registration, Stacks};
#[cfg(feature = "load")]
pub use memory::{MappedRing, MappedSlots};
#[cfg(feature = "load")]
pub use notifier::{Carrier, Hook, Notifier, WAYS};
