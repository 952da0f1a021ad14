//! A page that must stay in memory for a while: see `thread_end.rs` of the agent.

use core::sync::atomic::Ordering;

use crate::ids::PageNo;
use crate::pagemap::{Mark, PageState};
use crate::pager::Pager;

impl Pager {
    /// Has the hand spare the page at `addr`, which has just been written, for as many rounds as it spares any. Whether it is
    /// still in its place; None: it has no word yet ([`Pager::give_word`]). For threads of the program: it takes nothing. Nobody
    /// may give memory of the page map back meanwhile.
    pub fn hold(&self, addr: usize) -> Option<bool> {
        let page = PageNo::of(addr);
        let mark = self.map.mark(page)?;
        mark.store(Mark::longest().bits(), Ordering::Relaxed);
        // Who detaches pages at this moment may have read the mark before, or write what it has made of it.
        self.space.outlast_exclusive();
        mark.store(Mark::longest().bits(), Ordering::Relaxed);
        Some(matches!(self.map.get(page), PageState::None | PageState::Clean(_)))
    }

    /// Makes sure that a page has a word, if there is memory for it; not while the program forks. By the keeper.
    pub fn give_word(&self, addr: usize) {
        if let Some(operation) = self.enter() {
            let _ = operation.map.populate(PageNo::of(addr));
        }
    }
}
