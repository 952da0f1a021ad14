//! The program's address space: what of it is registered, what the program does to it, and what is to stay in memory.

pub mod adoptable;
pub(crate) mod event_order;
pub(crate) mod events;
pub(crate) mod going;
pub(crate) mod guards;
pub(crate) mod held;
pub(crate) mod kept;
mod left_alone;
pub(crate) mod made_move;
pub(crate) mod mlocked;
pub(crate) mod moved;
pub(crate) mod ranges;
pub(crate) mod regions;
mod registered;
mod release;
mod removal;
pub(crate) mod removal_calls;
mod removed;
pub(crate) mod space;
mod stale;
pub(crate) mod walks;

pub use held::Hold;
pub use left_alone::LeftAlone;
pub use made_move::Move;
pub use mlocked::{Lock, Locks};
pub use ranges::BringIn;
pub use regions::Range;
pub use removal_calls::RemovalCall;
