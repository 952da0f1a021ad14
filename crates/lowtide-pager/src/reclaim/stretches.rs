//! Compressibility: pages near incompressible ones rarely compress.
//!
//! After [`ENOUGH`] vain tries in a row one page in [`ONE_IN`] of a stretch is tried until one
//! pays. Unlocked: an error costs only room.

use core::sync::atomic::{AtomicU8, Ordering};

use lowtide_core::store::Trials;
use lowtide_core::table::Table;
use lowtide_core::vm::OnFork;
use rustix::io::Errno;

use crate::pagemap::BLOCK_PAGES as PAGES;
use crate::pagemap::ids::PageNo;

const ENOUGH: u8 = 2;
const ONE_IN: u8 = 16;
/// 16 GiB; further ones share entries.
const STRETCHES: usize = 1 << 16;

/// Up to [`ENOUGH`]: vain tries in a row; above: pages to skip.
pub(crate) struct Stretches(Table<AtomicU8>);

impl Stretches {
    /// Error: `NOMEM`.
    pub(crate) fn new() -> Result<Stretches, Errno> {
        Ok(Stretches(Table::new(STRETCHES, OnFork::Copy)?))
    }

    /// Pages without an owner are tried.
    pub(crate) fn trials<'a>(&'a self, owners: &'a [Option<PageNo>]) -> impl Trials + 'a {
        Run { stretches: self, owners }
    }

    fn of(&self, page: PageNo) -> &AtomicU8 {
        // Adjacent, so only used parts take memory.
        &self.0[page.number() / PAGES % STRETCHES]
    }

    fn is_worth_trying(&self, page: PageNo) -> bool {
        let known = self.of(page);
        let left = known.load(Ordering::Relaxed);
        if left > ENOUGH {
            known.store(left - 1, Ordering::Relaxed);
        }
        left <= ENOUGH
    }

    fn is_promising(&self, page: PageNo) -> bool {
        self.of(page).load(Ordering::Relaxed) == 0
    }

    fn was_tried(&self, page: PageNo, paid: bool) {
        let known = self.of(page);
        let was = known.load(Ordering::Relaxed);
        let now = match was {
            _ if paid => 0,
            _ if was + 1 < ENOUGH => was + 1,
            _ => ENOUGH + ONE_IN - 1,
        };
        if now != was {
            known.store(now, Ordering::Relaxed);
        }
    }
}

/// Pages stored together.
struct Run<'a> {
    stretches: &'a Stretches,
    owners: &'a [Option<PageNo>],
}

impl Run<'_> {
    fn owner(&self, i: usize) -> Option<PageNo> {
        self.owners.get(i).copied().flatten()
    }
}

impl Trials for Run<'_> {
    fn is_worth_trying(&self, i: usize) -> bool {
        self.owner(i).is_none_or(|page| self.stretches.is_worth_trying(page))
    }

    fn is_promising(&self, i: usize) -> bool {
        self.owner(i).is_none_or(|page| self.stretches.is_promising(page))
    }

    fn was_tried(&self, i: usize, paid: bool) {
        if let Some(page) = self.owner(i) {
            self.stretches.was_tried(page, paid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const FIRST: PageNo = PageNo::new(7 * PAGES);

    fn stored(stretches: &Stretches, pages: usize, compresses: bool) -> usize {
        let owners: Vec<_> = (0..pages).map(|i| Some(FIRST + i % PAGES)).collect();
        let trials = stretches.trials(&owners);
        let tried = |i: &usize| {
            let tried = trials.is_worth_trying(*i);
            if tried {
                trials.was_tried(*i, compresses);
            }
            tried
        };
        (0..pages).filter(tried).count()
    }

    #[test]
    fn where_pages_do_not_compress_one_in_sixteen_is_tried_until_one_does() {
        let stretches = Stretches::new().unwrap();
        assert_eq!(stored(&stretches, 100, true), 100);
        assert_eq!(stored(&stretches, 1, false), 1);
        assert_eq!(stored(&stretches, 10, true), 10, "one says nothing");
        assert_eq!(stored(&stretches, 2 + 160, false), 2 + 10);
        assert!(stored(&stretches, 16, true) >= 1);
        assert_eq!(stored(&stretches, 50, true), 50, "they are taken for compressible again");
    }

    #[test]
    fn neighbours_are_told_apart_and_pages_of_nobody_are_tried() {
        let stretches = Stretches::new().unwrap();
        assert_eq!(stored(&stretches, 40, false), 2 + 2);
        assert!(stretches.is_worth_trying(FIRST + PAGES));
        assert!((0..40).all(|i| stretches.trials(&[None]).is_worth_trying(i)));
    }
}
