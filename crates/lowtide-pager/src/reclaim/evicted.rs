//! What a step of eviction came to.

/// What one call of [`Pager::evict`] came to.
///
/// [`Pager::evict`]: crate::pager::Pager::evict
/// [`Pager::search_rests_us`]: crate::pager::Pager::search_rests_us
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// Memory was or will soon be freed, or there is more to look at: go on.
    Progress,
    /// Nothing more can be evicted at present.
    Nothing,
    /// No tier can take pages.
    Full,
    /// The same, and zeros, which need none, are searched for: go on after a rest ([`Pager::search_rests_us`]).
    Searching,
    /// Not now: an event waits to be read, or the program forks.
    Later,
    /// Others are at it: monitors bring pages into staging, or have in hand what waits there.
    Ahead,
}

impl Evicted {
    /// The same, or `then` if it is Nothing.
    pub(crate) fn unless_nothing(self, then: Evicted) -> Evicted {
        if self == Evicted::Nothing { then } else { self }
    }
}
