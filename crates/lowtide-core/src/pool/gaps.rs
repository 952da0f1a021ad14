//! The gaps between the objects of a span, and the choice of gaps to join. All numbers are granules
//! (`span.rs`).

use core::ops::Range;

use arrayvec::ArrayVec;

use super::span::MAX_GRANULES;

/// Gaps and objects alternate, and have at least a granule each.
const MAX_GAPS: usize = MAX_GRANULES / 2;

/// (begin, end), in order. The first begins where objects may; it alone may be empty.
#[derive(Debug)]
pub(super) struct Gaps {
    gaps: ArrayVec<(u16, u16), MAX_GAPS>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Window {
    pub first: usize,
    pub last: usize,
}

impl Gaps {
    pub(super) fn between(all: Range<usize>, taken: impl Iterator<Item = Range<usize>>) -> Gaps {
        // A bit for each change between taken and free, cheaper than sorting. (Where objects touch,
        // it turns twice.)
        let mut turns = [0u64; MAX_GRANULES / 64 + 1];
        for range in taken {
            turns[range.start / 64] ^= 1 << (range.start % 64);
            turns[range.end / 64] ^= 1 << (range.end % 64);
        }
        let mut gaps = ArrayVec::new();
        let mut begin = Some(all.start);
        for (i, mut word) in turns.into_iter().enumerate() {
            while word != 0 {
                let place = i * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                match begin.take() {
                    Some(begin) if !gaps.is_full() => gaps.push((begin as u16, place as u16)),
                    _ => begin = Some(place),
                }
            }
        }
        if let Some(begin) = begin.filter(|begin| *begin < all.end && !gaps.is_full()) {
            gaps.push((begin as u16, all.end as u16));
        }
        Gaps { gaps }
    }

    pub(super) fn begin(&self, gap: usize) -> usize {
        self.gaps[gap].0 as usize
    }

    pub(super) fn end(&self, gap: usize) -> usize {
        self.gaps[gap].1 as usize
    }

    fn len(&self, gap: usize) -> usize {
        self.end(gap) - self.begin(gap)
    }

    /// The gaps with `need` granules together and the fewest granules of objects in between; of
    /// such, the shortest. Thus a single sufficient gap wins. All gaps together must suffice.
    pub(super) fn window(&self, need: usize) -> Window {
        let mut best = (usize::MAX, usize::MAX);
        let mut window = Window { first: 0, last: self.gaps.len().saturating_sub(1) };
        let (mut first, mut sum) = (0, 0);
        for last in 0..self.gaps.len() {
            sum += self.len(last);
            while sum - self.len(first) >= need {
                sum -= self.len(first);
                first += 1;
            }
            let cost = (self.end(last) - self.begin(first) - sum, sum);
            if sum >= need && cost < best {
                (best, window) = (cost, Window { first, last });
            }
        }
        window
    }

    pub(super) fn first(&self, need: usize) -> Window {
        let mut sum = 0;
        let last = (0..self.gaps.len()).position(|gap| {
            sum += self.len(gap);
            sum >= need
        });
        Window { first: 0, last: last.unwrap_or(0) }
    }

    /// Distance by which joining a window moves the object at `place` up.
    pub(super) fn behind(&self, window: Window, place: usize) -> usize {
        if place < self.end(window.first) || place > self.begin(window.last) {
            return 0;
        }
        (window.first..=window.last).filter(|gap| self.begin(*gap) > place).map(|gap| self.len(gap)).sum()
    }

    pub(super) fn longest_outside(&self, window: Window) -> usize {
        let outside = (0..self.gaps.len()).filter(|gap| *gap < window.first || *gap > window.last);
        outside.map(|gap| self.len(gap)).max().unwrap_or(0)
    }

    pub(super) fn longest(&self) -> usize {
        (0..self.gaps.len()).map(|gap| self.len(gap)).max().unwrap_or(0)
    }

    pub(super) fn total(&self) -> usize {
        (0..self.gaps.len()).map(|gap| self.len(gap)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn gaps(of: &[Range<usize>]) -> Vec<(usize, usize)> {
        let gaps = Gaps::between(4..200, of.iter().cloned());
        (0..gaps.gaps.len()).map(|gap| (gaps.begin(gap), gaps.end(gap))).collect()
    }

    #[test]
    fn what_objects_leave() {
        assert_eq!(gaps(&[]), [(4, 200)]);
        assert_eq!(gaps(&[4..10, 190..200]), [(4, 4), (10, 190)]);
        assert_eq!(gaps(&[70..128, 64..65, 129..193]), [(4, 64), (65, 70), (128, 129), (193, 200)]);
        assert_eq!(gaps(&[150..200, 4..150]), [(4, 4)]);
    }

    #[test]
    fn the_cheapest_gaps_are_joined() {
        // Gaps of 6, 10, 4, 9; objects of 20, 30 and 2 between them.
        let gaps = Gaps::between(0..81, [6..26, 36..66, 70..72].into_iter());
        for (need, first, last) in [(9, 3, 3), (10, 1, 1), (11, 2, 3), (13, 2, 3), (14, 0, 1), (17, 1, 3), (29, 0, 3)] {
            assert_eq!(gaps.window(need), Window { first, last }, "{need}");
        }
        assert_eq!(gaps.first(7), Window { first: 0, last: 1 });
        let window = Window { first: 1, last: 3 };
        assert_eq!([6, 36, 70, 81].map(|place| gaps.behind(window, place)), [0, 13, 9, 0]);
        assert_eq!((gaps.longest_outside(window), gaps.longest(), gaps.total()), (6, 10, 29));
    }
}
