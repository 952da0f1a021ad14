//! What the slot experiments measure: anything that gives out slots.

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
    /// Rank of the locks of which there are many.
    const LOCAL: u8;

    /// Gives out a run. `None`: the caller must make do with smaller ones.
    fn alloc(&self, order: u32) -> Option<u64>;

    /// Takes `n` slots back, all from one run that [`Slots::alloc`] gave out.
    fn free(&self, first: u64, n: u64);

    /// Whether a free run exists at all: found out by looking at every slot, and meant for moments when nobody else is at work.
    fn has_free_run(&self, order: u32) -> bool;

    /// How often the shared lock and all the local ones were taken.
    fn taken(&self) -> Taken;

    /// Searches that went beyond the cluster used last, and the clusters they opened, since the start; zeros if it doesn't
    /// count.
    fn searched(&self) -> Searched;
}

/// How often locks were taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// The one that all share.
    pub shared: u64,
    /// The others, together.
    pub local: u64,
}

/// What searching cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Searched {
    /// Searches.
    pub searches: u64,
    /// Clusters they opened.
    pub opened: u64,
}
