//! Swap slots: areas, clusters, and the entries that name a slot.
//!
//! An allocation passes `areas/`, `search.rs` (order of clusters), `take.rs`, `cluster.rs` and
//! `bitmap.rs`. A free goes straight to the cluster: `area.rs`, for several slots `row.rs`.

mod age;
mod area;
mod areas;
mod at_hand;
mod availability;
mod backoff;
mod bitmap;
mod cluster;
mod clusters;
mod discard;
mod entry;
mod error;
mod fill;
mod holders;
mod index;
mod io;
// Without the feature a file with the same names, which have neither size nor code: no other file
// of the allocator needs to know.
#[cfg_attr(not(feature = "lab"), path = "no_lab.rs")]
mod lab;
mod lists;
mod next;
mod quota;
mod row;
mod search;
mod sharing;
mod swap_cache;
mod take;
mod validate;
mod zombies;

pub use age::{Ages, Clock, Visit};
pub use area::{Area, AreaConfig, MAX_SLOTS};
pub use areas::{AreaRef, Areas};
pub use availability::Unavailable;
pub use cluster::{CLUSTER_SLOTS, MAX_ORDER, ORDERS};
pub use entry::Entry;
pub use error::SlotError;
pub use fill::{FILLS, Fills};
pub(crate) use holders::HOLDERS;
pub use holders::Image;
pub use io::IoCounts;
pub use lab::Allocator;
#[cfg(feature = "lab")]
pub use lab::{Policy, SearchStats};
pub use quota::Quota;
pub use row::Row;
pub use sharing::Refers;
pub use swap_cache::{NoCache, SwapCache};
pub use validate::Invalid;

#[cfg(all(test, any(feature = "loom", feature = "shuttle")))]
mod models;
#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests;
