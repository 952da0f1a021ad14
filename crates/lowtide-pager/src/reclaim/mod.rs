//! Reclaim: what is evicted, when, and what becomes of it.
//!
//! When, and how much: `policy.rs` decides, by the watermarks (`watermarks.rs`) and by what one look at the run has shown;
//! `reclaimer.rs` looks and carries its steps out. Which pages: `victims.rs`, and how long a page is spared that came back soon
//! after it had left: `refault.rs`. The way of a page out: `detach.rs` (from its place into staging), `evict.rs` (a batch of
//! them, which `alike.rs` says can leave together), `drain.rs` (from staging into the store, where `stretches.rs` says what is
//! not worth compressing). `backoff.rs` says when not to try, `zeros.rs` finds pages that cost nothing when nothing else can go,
//! `soft_dirty.rs` says when nothing may leave any more.
//!
//! WHO MAY START RECLAIM OF MEMORY, and nobody else:
//! 1. the reclaimer in the background ([`Reclaimer::turn`]), above the watermarks;
//! 2. the same when the user asks for memory ([`Reclaimer::evict_on_request`]);
//! 3. a fault handler thread after it has served, above the high watermark while the reclaimer sleeps: it only detaches pages,
//!    for the reclaimer to store ([`Pager::stage_ahead`]);
//! 4. a fault for which there is no room below the limit (direct reclaim, `Pager::make_room` in `fault/mod.rs`).
//!
//! Two more detach pages for reasons of their own: the library's caller that names a range ([`Pager::evict_range`]), and write
//! sentinels, which take the zero page away (`fault/sentinels.rs`).
//!
//! [`Pager::evict_range`]: crate::pager::Pager::evict_range
//! [`Pager::stage_ahead`]: crate::pager::Pager::stage_ahead

mod alike;
pub(crate) mod backoff;
mod calm;
pub(crate) mod detach;
pub(crate) mod drain;
pub(crate) mod evict;
pub(crate) mod evicted;
pub(crate) mod giving_way;
pub mod policy;
#[cfg(test)]
mod policy_tests;
mod reclaimer;
pub(crate) mod refault;
pub(crate) mod soft_dirty;
pub(crate) mod staging;
pub(crate) mod staging_depth;
pub(crate) mod stretches;
pub mod swapoff;
pub(crate) mod victims;
#[cfg(test)]
mod victims_tests;
mod watermarks;
pub(crate) mod zeros;

pub use calm::{Calm, UNACCOUNTED};
pub use evicted::Evicted;
pub use giving_way::Yields;
pub use policy::Nap;
pub use reclaimer::{Host, Reclaimer, Requested, Seen};
pub use staging_depth::Depth;
pub use watermarks::Watermarks;
