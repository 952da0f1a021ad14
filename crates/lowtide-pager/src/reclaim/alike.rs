//! Groups pages by protection, data or code (rwx), as a MOVE requires ([`Staging::prepare`]); skips
//! immovable memory (a collector's, read-only for a while).
//!
//! Only programs with such memory pay for asking each time: past the C library a cache would become
//! stale. Changes before the MOVE keep pages until the next round.
//!
//! [`Staging::prepare`]: crate::pages::staging::Staging::prepare

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::maps::{Mapping, Protection};
use lowtide_sys::present::Ranges;

use crate::pager::Pager;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alike {
    /// None: all are immovable.
    pub is_code: Option<bool>,
    /// Immovable pages.
    pub stay: usize,
}

impl Pager {
    pub(crate) fn keep_alike(&self, found: &mut Ranges) -> Alike {
        if !self.asks_protection() {
            return Alike { is_code: Some(false), stay: 0 };
        }
        let mut mappings = self.present().mappings.walk();
        keep_alike(found, |addr| mappings.next_mapping(addr).ok().flatten())
    }

    pub(crate) fn is_code(&self, addr: usize) -> bool {
        let is_code = |mapping: Mapping| mapping.protection == Protection::Code;
        self.has_code() && self.present().mappings.walk().next_mapping(addr).ok().flatten().is_some_and(is_code)
    }
}

/// `next`: the first mapping that ends behind an ascending address. The next scan skips an
/// immovable mapping.
fn keep_alike(found: &mut Ranges, mut next: impl FnMut(usize) -> Option<Mapping>) -> Alike {
    let (mut kept, mut is_code, mut stay) = (Ranges::none(), None, 0);
    kept.walk_end = found.walk_end;
    let mut last: Option<Mapping> = None;
    'found: for (start, end) in found.iter() {
        let mut at = start;
        while at < end {
            let mapping = last.filter(|last| at < last.range.end).or_else(|| next(at));
            // Unmapped since.
            let Some(mapping) = mapping.filter(|mapping| mapping.range.start < end) else { break };
            last = Some(mapping);
            at = at.max(mapping.range.start);
            let stop = end.min(mapping.range.end);
            let here = match mapping.protection {
                Protection::Data => Some(false),
                Protection::Code => Some(true),
                Protection::Less => None,
            };
            if here.is_some() {
                if is_code.is_some() && here != is_code || !kept.add(at, stop) {
                    kept.walk_end = at;
                    break 'found;
                }
                is_code = here;
            } else {
                stay += (stop - at) / PAGE_SIZE;
            }
            at = stop;
        }
    }
    if let Some(Mapping { range, protection: Protection::Less, .. }) = last
        && (range.start..range.end).contains(&kept.walk_end)
    {
        kept.walk_end = range.end;
    }
    *found = kept;
    Alike { is_code, stay }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_sys::Range;
    use lowtide_sys::present::MAX_RANGES;
    use std::vec::Vec;

    fn ranges_of(found: &[(usize, usize)], walk_end: usize) -> Ranges {
        let mut ranges = Ranges::none();
        ranges.walk_end = walk_end;
        assert!(found.iter().all(|&(start, end)| ranges.add(start, end)), "too many ranges");
        ranges
    }

    /// Kept ranges, whether code, end of scan, queries.
    type Kept = (Vec<(usize, usize)>, Option<bool>, usize, usize);

    /// Pages up to 100; contiguous mappings start at the given pages.
    fn kept(found: &[(usize, usize)], mappings: &[(usize, Option<Protection>)]) -> Kept {
        let found: Vec<_> = found.iter().map(|&(start, end)| (start * PAGE_SIZE, end * PAGE_SIZE)).collect();
        let mut ranges = ranges_of(&found, 100 * PAGE_SIZE);
        let ends = mappings.iter().skip(1).map(|mapping| mapping.0).chain([usize::MAX / PAGE_SIZE]);
        let all = || mappings.iter().zip(ends.clone());
        let mut asked = 0;
        let Alike { is_code, .. } = keep_alike(&mut ranges, |addr| {
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
    fn what_finds_no_room_is_left_to_the_next_scan() {
        // Every second page is read-only.
        let pages = 3 * MAX_RANGES;
        let mut ranges = ranges_of(&[(0, pages * PAGE_SIZE)], pages * PAGE_SIZE);
        let alike = keep_alike(&mut ranges, |addr| {
            let protection = if (addr / PAGE_SIZE).is_multiple_of(2) { Protection::Less } else { Protection::Data };
            Some(Mapping { range: Range { start: addr, end: addr + PAGE_SIZE }, protection, is_anonymous: true })
        });
        assert_eq!(alike, Alike { is_code: Some(false), stay: MAX_RANGES + 1 });
        assert_eq!(ranges.pages(), MAX_RANGES);
        assert_eq!(ranges.walk_end, (2 * MAX_RANGES + 1) * PAGE_SIZE);
    }

    #[test]
    fn what_leaves_together_is_of_one_protection() {
        assert_eq!(kept(&[(1, 5), (7, 9)], &[(0, CODE)]), (std::vec![(1, 5), (7, 9)], Some(true), 100, 1));
        assert_eq!(
            kept(&[(1, 5), (7, 9)], &[(0, DATA), (3, DATA), (8, DATA)]),
            (std::vec![(1, 5), (7, 9)], Some(false), 100, 3)
        );
        assert_eq!(kept(&[(1, 5), (7, 9)], &[(0, DATA), (3, CODE)]), (std::vec![(1, 3)], Some(false), 3, 2));
        assert_eq!(kept(&[(1, 5), (7, 9)], &[(0, CODE), (6, DATA)]), (std::vec![(1, 5)], Some(true), 7, 2));
        let closed_in_part = [(0, LESS), (2, CODE), (4, LESS), (6, CODE), (8, DATA)];
        assert_eq!(kept(&[(1, 9)], &closed_in_part), (std::vec![(2, 4), (6, 8)], Some(true), 8, 5));
        assert_eq!(kept(&[(1, 3), (5, 9)], &[(0, LESS), (7, DATA), (8, LESS)]).0, std::vec![(7, 8)]);
        assert_eq!(kept(&[(1, 9)], &[(0, LESS), (200, DATA)]), (Vec::new(), None, 200, 1));
        assert_eq!(kept(&[(1, 9)], &[(0, LESS), (50, DATA)]), (Vec::new(), None, 100, 1));
        assert_eq!(kept(&[(1, 5), (7, 9)], &[(0, None), (6, CODE)]), (std::vec![(7, 9)], Some(true), 100, 2));
        assert_eq!(kept(&[(1, 5)], &[]), (Vec::new(), None, 100, 1));
        assert_eq!(kept(&[], &[(0, CODE)]), (Vec::new(), None, 100, 0));
    }
}
