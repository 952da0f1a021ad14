//! Errors of the slot allocator.

use core::fmt;

/// Why a call was refused; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotError {
    /// An area of no slots.
    Empty,
    /// An area smaller than one cluster.
    SmallerThanCluster,
    /// More slots than an entry can name.
    TooLarge,
    /// No memory for the area's tables.
    NoMemory,
    /// As many areas as an entry can name.
    TooManyAreas,
    /// A slot that the area does not have, or never gave out.
    NoSuchSlot,
    /// A run that is empty or crosses a cluster's end.
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
