//! Swap slots: areas, clusters, and the entries that name a slot.

mod entry;

pub use entry::Entry;
