//! Pages that leave together are of memory of one protection, data or code beside data (rwx): a MOVE takes them to a batch of
//! staging that has the same ([`Staging::prepare`]).
//!
//! What may be done where is asked of the kernel each time, and only in programs that have memory which may be written and
//! executed: a note of it would be wrong as soon as the program changes it past the C library. Where it changes between the
//! question and the MOVE, the pages stay until the hand comes by again.
//!
//! [`Staging::prepare`]: super::staging::Staging::prepare

use crate::pager::Pager;
use crate::sys::maps::{Mapping, Protection};
use crate::sys::present::Ranges;

impl Pager {
    /// Of what a scan has found, keeps what can leave together, and says whether that is code. None: there is nothing, or none
    /// of it can be moved.
    pub(crate) fn keep_alike(&self, found: &mut Ranges) -> Option<bool> {
        if !self.has_code() {
            return Some(false);
        }
        let mut mappings = self.present().mappings.walk();
        keep_alike(found, |addr| mappings.next_mapping(addr).ok().flatten())
    }

    /// Whether the page at `addr` is to leave as code.
    pub(crate) fn is_code(&self, addr: usize) -> bool {
        let is_code = |mapping: Mapping| mapping.protection == Protection::Code;
        self.has_code() && self.present().mappings.walk().next_mapping(addr).ok().flatten().is_some_and(is_code)
    }
}

/// The same; `next` is asked for the first mapping that ends behind an address, in order of address.
fn keep_alike(found: &mut Ranges, mut next: impl FnMut(usize) -> Option<Mapping>) -> Option<bool> {
    let (mut is_code, mut end_of_alike, mut known) = (None, None, 0);
    'found: for (start, end) in found.iter() {
        let mut at = start.max(known);
        while at < end {
            // What was unmapped since is for nobody to move.
            let Some(mapping) = next(at).filter(|mapping| mapping.range.start < end) else { break };
            let here = match mapping.protection {
                Protection::Data => Some(false),
                Protection::Code => Some(true),
                Protection::Less => None,
            };
            if here.is_some() && is_code.is_some() && here != is_code {
                end_of_alike = Some(mapping.range.start.max(at));
                break 'found;
            }
            is_code = is_code.or(here);
            at = mapping.range.end;
            known = at;
        }
    }
    if let Some(end) = end_of_alike {
        found.cut(end);
    }
    is_code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::Range;
    use lowtide_core::vm::PAGE_SIZE;
    use std::vec::Vec;

    /// What is kept, whether it is code, up to where it was looked, and how often the kernel was asked.
    type Kept = (Vec<(usize, usize)>, Option<bool>, usize, usize);

    /// Of pages that were found up to page 100, where mappings begin at these pages and go up to the next one.
    fn kept(found: &[(usize, usize)], mappings: &[(usize, Option<Protection>)]) -> Kept {
        let found: Vec<_> = found.iter().map(|&(start, end)| (start * PAGE_SIZE, end * PAGE_SIZE, false)).collect();
        let mut ranges = Ranges::of(&found, 100 * PAGE_SIZE);
        let ends = mappings.iter().skip(1).map(|mapping| mapping.0).chain([usize::MAX / PAGE_SIZE]);
        let all = || mappings.iter().zip(ends.clone());
        let mut asked = 0;
        let is_code = keep_alike(&mut ranges, |addr| {
            asked += 1;
            all().find_map(|(&(start, protection), end)| {
                let range = Range { start: start * PAGE_SIZE, end: end * PAGE_SIZE };
                protection.filter(|_| addr < range.end).map(|protection| Mapping { range, protection, is_anonymous: true })
            })
        });
        let pages = |(start, end): (usize, usize)| (start / PAGE_SIZE, end / PAGE_SIZE);
        (ranges.iter().map(pages).collect(), is_code, ranges.walk_end / PAGE_SIZE, asked)
    }

    const DATA: Option<Protection> = Some(Protection::Data);
    const CODE: Option<Protection> = Some(Protection::Code);
    const LESS: Option<Protection> = Some(Protection::Less);

    #[test]
    fn what_leaves_together_is_of_one_protection() {
        // All alike, in one mapping and in several.
        assert_eq!(kept(&[(1, 5), (7, 9)], &[(0, CODE)]), (std::vec![(1, 5), (7, 9)], Some(true), 100, 1));
        assert_eq!(
            kept(&[(1, 5), (7, 9)], &[(0, DATA), (3, DATA), (8, DATA)]),
            (std::vec![(1, 5), (7, 9)], Some(false), 100, 3)
        );
        // It ends where another begins, in a range or between two.
        assert_eq!(kept(&[(1, 5), (7, 9)], &[(0, DATA), (3, CODE)]), (std::vec![(1, 3)], Some(false), 3, 2));
        assert_eq!(kept(&[(1, 5), (7, 9)], &[(0, CODE), (6, DATA)]), (std::vec![(1, 5)], Some(true), 7, 2));
        // What can't be moved goes with either.
        let closed_in_part = [(0, LESS), (2, CODE), (4, LESS), (6, CODE), (8, DATA)];
        assert_eq!(kept(&[(1, 9)], &closed_in_part), (std::vec![(1, 8)], Some(true), 8, 5));
        assert_eq!(kept(&[(1, 9)], &[(0, LESS)]), (std::vec![(1, 9)], None, 100, 1));
        // What is not mapped any more is passed over.
        assert_eq!(kept(&[(1, 5), (7, 9)], &[(0, None), (6, CODE)]), (std::vec![(1, 5), (7, 9)], Some(true), 100, 2));
        assert_eq!(kept(&[(1, 5)], &[]), (std::vec![(1, 5)], None, 100, 1));
        assert_eq!(kept(&[], &[(0, CODE)]), (Vec::new(), None, 100, 0));
    }
}
