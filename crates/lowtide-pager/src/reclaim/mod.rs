//! Reclaim: what is evicted, when, and what becomes of it.
//!
//! The way of a page out: `victims.rs` (which), `detach.rs` (from its place into staging), `evict.rs` (a batch of them), and
//! `drain.rs` (from staging into the store).

pub(crate) mod backoff;
pub(crate) mod detach;
pub(crate) mod drain;
pub(crate) mod evict;
pub(crate) mod giving_way;
pub(crate) mod refault;
pub(crate) mod staging;
pub(crate) mod staging_depth;
pub mod swapoff;
pub(crate) mod victims;
pub(crate) mod zeros;

pub use evict::Evicted;
pub use giving_way::Yields;
pub use staging_depth::Depth;
