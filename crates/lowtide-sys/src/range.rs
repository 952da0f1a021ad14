//! A range of addresses.

/// A range of addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: usize,
    /// End.
    pub end: usize,
}

impl Range {
    /// No bytes.
    pub const NONE: Range = Range { start: 0, end: 0 };

    /// Whether it contains all of `other`.
    pub fn covers(self, other: Range) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// What is in both; empty: `start` is not below `end`.
    pub fn within(self, other: Range) -> Range {
        Range { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// The smallest range with both.
    #[must_use]
    pub fn hull(self, other: Range) -> Range {
        Range { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// What is left of it around `hole`.
    pub fn without(self, hole: Range) -> impl Iterator<Item = Range> {
        let before = Range { end: self.end.min(hole.start), ..self };
        let behind = Range { start: self.start.max(hole.end), ..self };
        [before, behind].into_iter().filter(|part| part.start < part.end)
    }

    /// Whether some byte is in both.
    pub fn meets(self, other: Range) -> bool {
        self.start < other.end && other.start < self.end
    }
}
