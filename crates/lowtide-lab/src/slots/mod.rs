//! The interface of all measured slot allocators.

mod apart;
mod area;
mod baseline;
mod cached;

pub use apart::Apart;
pub use area::area;
pub use baseline::Baseline;
pub use cached::Cached;

/// Slots in runs of 2^order, at multiples of that, for any number of threads.
pub trait Slots: Sync {
    /// Rank of the lock that all share: its waits are those of the class.
    const SHARED: u8;
    /// Rank of the many local locks.
    const LOCAL: u8;

    /// `None`: the caller must make do with smaller ones.
    fn alloc(&self, order: u32) -> Option<u64>;

    /// Takes `n` slots back, all from one run of [`Slots::alloc`].
    fn free(&self, first: u64, n: u64);

    /// Whether a free run exists at all: visits every slot, for moments without other threads.
    fn has_free_run(&self, order: u32) -> bool;

    fn taken(&self) -> Taken;

    /// Searches beyond the last used cluster, and the clusters they opened, since the start; zeros
    /// without counts.
    fn searched(&self) -> Searched;
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// The one that all share.
    pub shared: u64,
    pub local: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Searched {
    pub searches: u64,
    pub opened: u64,
}
