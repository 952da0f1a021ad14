//! What can be wrong with a call of the slot allocator.

use core::fmt;

/// Why a call was refused. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotError {
    /// An area of no slots.
    Empty,
    /// An area of fewer slots than one cluster has.
    SmallerThanCluster,
    /// An area of more slots than an entry can name.
    TooLarge,
    /// The kernel has no memory for the area's tables.
    NoMemory,
    /// There are as many areas as an entry can name.
    TooManyAreas,
    /// A slot that the area does not have, or never gave out.
    NoSuchSlot,
    /// A run of no slots, or one that goes beyond its cluster.
    AcrossClusters,
    /// A slot that is free already.
    NotInUse,
    /// The area is being emptied, or gone.
    Closed,
    /// The area still holds pages, or still takes them.
    StillInUse,
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotError::Empty => "a swap area of zero size: give it at least 2 MiB",
            SlotError::SmallerThanCluster => "a swap area must hold at least one cluster: 2 MiB",
            SlotError::TooLarge => "a swap area can hold at most 2^40 pages: 4 PiB",
            SlotError::NoMemory => "no memory for the tables of a swap area",
            SlotError::TooManyAreas => "there are 256 swap areas already",
            SlotError::NoSuchSlot => "the area has no such slot in use",
            SlotError::AcrossClusters => "a run of slots must lie in one cluster",
            SlotError::NotInUse => "the slot is free already",
            SlotError::Closed => "the swap area is being emptied, or gone",
            SlotError::StillInUse => "the swap area still holds pages",
        })
    }
}

impl core::error::Error for SlotError {}
