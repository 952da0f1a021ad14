//! Swap slots: areas, clusters, and the entries that name a slot.

mod area;
mod cluster;
mod entry;
mod lists;
mod refs;

pub use area::{Area, Budget};
pub use cluster::{CLUSTER_SLOTS, MAX_ORDER};
pub use entry::Entry;

#[cfg(test)]
mod tests;
