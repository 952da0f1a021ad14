//! What the thread with the turn changes: its events are known by it.

use lowtide_sys::Range;

/// What a call changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changes {
    /// What it unmaps, drops or moves.
    pub from: Range,
    /// The new place of a move, if the program gives one.
    pub to: Range,
    /// Length of a moved mapping afterwards, in bytes; else 0.
    pub len: usize,
}

impl Changes {
    /// Nothing.
    pub const NONE: Changes = Changes::of(Range::NONE);

    /// A range, without a move.
    pub const fn of(from: Range) -> Changes {
        Changes { from, to: Range::NONE, len: 0 }
    }

    pub(crate) fn covers(&self, range: Range) -> bool {
        self.from.covers(range) || self.to.covers(range)
    }
}
