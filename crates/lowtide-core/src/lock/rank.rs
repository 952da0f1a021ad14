//! The lock order of lowtide: a thread waits only for locks of a higher rank than all that it
//! holds; it may try any. No lock is held across device I/O, except the pager's space lock, an
//! unranked reader-writer lock outside all others.

/// Unchecked: never held together with another.
pub const UNRANKED: u8 = 0;
/// The pager's clock hand.
pub const HAND: u8 = 1;
/// The pager's queues of staging batches.
pub const STAGING: u8 = 2;
/// The list of available swap areas.
pub const AVAILABLE: u8 = 3;
/// One CPU's slot caches in the baseline (`slot/lab/area_lock.rs`).
pub const SLOT_CACHE: u8 = 4;
/// A whole area, in the baseline.
pub const AREA: u8 = 5;
/// An area's next offset on a rotational device.
pub const NEXT: u8 = 6;
/// One cluster of a swap area.
pub const CLUSTER: u8 = 7;
/// The lists of an area's clusters.
pub const LISTS: u8 = 8;
/// One shard of the compressed pool.
pub const POOL_SHARD: u8 = 9;
/// The free frames of one CPU.
pub const CPU_FRAMES: u8 = 10;
/// The buddy of an arena of frames.
pub const BUDDY: u8 = 11;
/// The table of lowtide's own mappings.
pub const MAPPINGS: u8 = 12;

/// One more than the highest rank.
pub const RANKS: usize = 13;

/// The name of a rank, for reports.
pub const fn name(rank: u8) -> &'static str {
    match rank {
        UNRANKED => "unranked",
        HAND => "hand",
        STAGING => "staging",
        AVAILABLE => "available",
        SLOT_CACHE => "slot cache",
        AREA => "area",
        NEXT => "next",
        CLUSTER => "cluster",
        LISTS => "lists",
        POOL_SHARD => "pool shard",
        CPU_FRAMES => "cpu frames",
        BUDDY => "buddy",
        MAPPINGS => "mappings",
        _ => "?",
    }
}
