//! Result of an eviction step.

/// Result of [`Pager::evict`].
///
/// [`Pager::evict`]: crate::pager::Pager::evict
/// [`Pager::search_rests_us`]: crate::pager::Pager::search_rests_us
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// Memory is or will soon be freed, or there is more to scan: go on.
    Progress,
    /// Go on too: nothing was evicted, but memory that the program had dropped was freed
    /// (`mappings/going.rs`).
    LetGo,
    /// Nothing more can be evicted now.
    Nothing,
    /// No tier takes pages.
    Full,
    /// No tier takes pages; zeros are sought after a rest ([`Pager::search_rests_us`]).
    Searching,
    /// Blocked by a pending event or fork.
    Later,
    /// Handlers are filling staging or taking pages from it.
    Ahead,
}

impl Evicted {
    /// Whether to go on.
    pub fn is_progress(self) -> bool {
        matches!(self, Evicted::Progress | Evicted::LetGo)
    }

    pub(crate) fn unless_nothing(self, then: Evicted) -> Evicted {
        if self == Evicted::Nothing { then } else { self }
    }
}
