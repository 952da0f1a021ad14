//! The program's address space: what is registered, what the program does to it, and what stays in
//! memory.

mod changes;
pub(crate) mod event_order;
pub(crate) mod events;
pub(crate) mod going;
pub(crate) mod guards;
pub(crate) mod held;
pub(crate) mod kept;
mod left_alone;
pub(crate) mod mlocked;
pub(crate) mod moved;
pub(crate) mod ranges;
pub(crate) mod regions;
mod registered;
pub mod registrable;
mod release;
mod removal;
pub(crate) mod removal_calls;
mod removed;
mod stale;
pub(crate) mod walks;

use core::sync::atomic::{AtomicBool, AtomicU64};

use lowtide_core::lock::{Lock as Mutex, rank};
use rustix::io::Errno;

use crate::mappings::event_order::Order;
use crate::mappings::going::Going;
use crate::mappings::guards::Guards;
use crate::mappings::held::Held;
use crate::mappings::kept::MOST_KEPT;
use crate::mappings::regions::Regions;
use crate::mappings::removal_calls::RemovalCalls;
use crate::mappings::walks::Walks;

pub use changes::Changes;
pub use held::Hold;
pub use left_alone::{LeftAlone, Removed};
pub use mlocked::{Lock, Locks};
pub use removal_calls::RemovalCall;

pub(crate) struct Mappings {
    pub(crate) regions: Regions,
    pub(crate) going: Going,
    pub(crate) removal_calls: RemovalCalls,
    pub(crate) walks: Walks,
    /// Changed under the exclusive space lock.
    pub(crate) order: Mutex<Order, { rank::UNRANKED }>,
    /// See `ranges.rs`.
    pub(crate) pinned: Regions,
    pub(crate) held: Held,
    /// See [`crate::pager::Pager::keeping`]; 0: none.
    pub(crate) kept: [AtomicU64; MOST_KEPT],
    pub(crate) guards: Guards,
    /// See [`crate::pager::Pager::events_read`].
    pub(crate) events_read: AtomicU64,
    /// See [`crate::pager::Pager::sees_code`].
    pub(crate) has_code: AtomicBool,
    /// See [`crate::pager::Pager::sees_unwritable`].
    pub(crate) has_unwritable: AtomicBool,
}

impl Mappings {
    pub(crate) fn new() -> Result<Mappings, Errno> {
        Ok(Mappings {
            regions: Regions::new()?,
            going: Going::new(),
            removal_calls: RemovalCalls::new(),
            walks: Walks::default(),
            order: Mutex::new(Order::default()),
            pinned: Regions::new()?,
            held: Held::new()?,
            kept: [const { AtomicU64::new(0) }; MOST_KEPT],
            guards: Guards::default(),
            events_read: AtomicU64::new(0),
            has_code: AtomicBool::new(false),
            has_unwritable: AtomicBool::new(false),
        })
    }
}
