//! Reclaim: what to evict, when, and how.
//!
//! `policy.rs` decides by a look and the watermarks (lowtide-wire's `watermarks.rs`);
//! `reclaimer.rs` looks and acts. `victims.rs` finds pages; `pagemap/refault.rs` spares early
//! returners. Pages leave through `detach.rs` (into staging), `evict.rs` (batches, alike by
//! `alike.rs`) and `drain.rs` (into the store; `stretches.rs` knows incompressible ones).
//! `backoff.rs` delays vain tries, `zeros.rs` finds zero pages, `soft_dirty.rs` ends eviction, and
//! `references.rs` knows pages the kernel may write to.
//!
//! Only these start reclaim of memory:
//! 1. the reclaimer ([`Reclaimer::turn`]), above the watermarks;
//! 2. the user ([`Reclaimer::evict_on_request`]);
//! 3. a handler after serving, above the high watermark while the reclaimer sleeps: it only
//!    detaches ([`Pager::stage_ahead`]);
//! 4. a fault without room below the limit (direct reclaim, `Pager::make_room` in `fault/mod.rs`).
//!
//! The library's [`Pager::evict_range`] and write sentinels (`sentinels.rs`) detach pages for
//! other reasons.
//!
//! [`Pager::evict_range`]: crate::pager::Pager::evict_range
//! [`Pager::stage_ahead`]: crate::pager::Pager::stage_ahead

mod alike;
pub(crate) mod backoff;
mod calm;
pub(crate) mod detach;
pub(crate) mod drain;
pub(crate) mod evict;
mod evict_range;
pub(crate) mod evicted;
pub(crate) mod giving_way;
pub mod policy;
#[cfg(test)]
mod policy_tests;
mod reclaimer;
pub(crate) mod references;
pub(crate) mod sentinels;
pub(crate) mod soft_dirty;
pub(crate) mod staging_depth;
pub(crate) mod stretches;
pub mod swapoff;
pub(crate) mod victims;
pub(crate) mod zeros;

use core::sync::atomic::{AtomicBool, AtomicUsize};

use lowtide_core::lock::{Lock, rank};
use rustix::io::Errno;

use crate::reclaim::backoff::Backoff;
use crate::reclaim::references::References;
use crate::reclaim::sentinels::Sentinels;
use crate::reclaim::soft_dirty::SoftDirty;
use crate::reclaim::stretches::Stretches;
use crate::reclaim::victims::Hand;
use crate::reclaim::zeros::Search;

pub use calm::{Calm, UNACCOUNTED};
pub use evicted::Evicted;
pub use giving_way::Yields;
pub use policy::Nap;
pub use reclaimer::{Host, Reclaimer, Requested, Seen};
pub use staging_depth::Depth;

pub(crate) struct Reclaim {
    pub(crate) hand: Lock<Hand, { rank::HAND }>,
    /// Bytes per scan of the hand.
    pub(crate) reach: AtomicUsize,
    /// After vain searches.
    pub(crate) backoff: Backoff,
    /// After searches for next to nothing.
    pub(crate) look_backoff: Backoff,
    /// After vain detaching by handlers.
    pub(crate) ahead_backoff: Backoff,
    pub(crate) stretches: Stretches,
    pub(crate) search: Search,
    /// Changed under the exclusive space lock, or by their thread.
    pub(crate) sentinels: Lock<Sentinels, { rank::UNRANKED }>,
    pub(crate) soft_dirty: SoftDirty,
    pub(crate) references: References,
    pub(crate) reclaiming: AtomicBool,
}

impl Reclaim {
    pub(crate) fn new(soft_dirty: SoftDirty) -> Result<Reclaim, Errno> {
        Ok(Reclaim {
            hand: Lock::new(Hand::default()),
            reach: AtomicUsize::new(1 << 30),
            backoff: Backoff::default(),
            look_backoff: Backoff::default(),
            ahead_backoff: Backoff::default(),
            stretches: Stretches::new()?,
            search: Search::default(),
            sentinels: Lock::new(Sentinels::new()),
            soft_dirty,
            references: References::new(),
            reclaiming: AtomicBool::new(false),
        })
    }
}
