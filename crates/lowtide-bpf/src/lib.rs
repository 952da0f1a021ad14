//! Page faults reported by a signal: BPF programs where the kernel hands a fault to userfaultfd.
//!
//! A program at the entry of the kernel's `handle_userfault` signals the faulting thread, whose
//! handler serves the fault. Other faults become records in a ring of the process, which wakes
//! lowtide's thread there: see `docs/design/in-thread.md`.
//!
//! [`record`], [`ring`] and [`slot`] are for the faulting process: no `std`, no allocation, no
//! system call. The rest (the feature `load`) is for the privileged process that loads the
//! programs.

#![cfg_attr(not(feature = "load"), no_std)]

pub mod record;
pub mod ring;
pub mod slot;

/// SIGSTKFLT: no kernel for 64-bit x86 sends it, and it has no queue that could be full.
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
