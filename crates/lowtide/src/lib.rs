//! lowtide as a library: regions of memory that may be larger than RAM, for one program, without
//! root.
//!
//! ```
//! use lowtide::{Region, Swap};
//!
//! // 64 MiB that take no more than 16 MiB of RAM.
//! let mut region = Region::builder(64 << 20).ram(16 << 20).swap(Swap::Auto).build()?;
//! region.as_mut_slice().fill(7);
//! assert!(region.as_slice().iter().all(|byte| *byte == 7));
//! # Ok::<(), lowtide::Error>(())
//! ```
//!
//! **System calls** on a missing page of a region fail with `EFAULT`, unless [`Region::resident`]
//! holds it, or the region uses [`Delivery::Monitor`]. [`lowtide_region`], whose public name this
//! crate is, describes this, signals, forks and limits.
//!
//! Without the command line: `lowtide = { version = "0.1", default-features = false }`.

pub use lowtide_region::{Builder, Codec, Delivery, Error, Group, GroupBuilder, LEAST_RAM, Region, Resident, Stats, Swap};
