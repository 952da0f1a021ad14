//! How much of what all lists may keep falls to each set of them.
//!
//! Where little may be kept, few of the sets are used, and several CPUs share one: a set without room for the longest run is no
//! use, and one that has for each CPU would be more memory the more CPUs there are.

use super::MAX_RUN;

/// Frames of a set at least, where more than one is used: the longest run.
pub(super) const LEAST_OF_SET: usize = MAX_RUN as usize;

/// The sets of lists of an arena that are used, and what they may keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    /// So many, from the first on ...
    pub(super) sets: usize,
    /// ... keep the memory of so many frames each, and the others of none.
    pub(super) bound: u32,
}

impl Share {
    /// Of an arena with `sets` sets, all of which together may keep the memory of `frames` frames.
    pub(super) fn of(frames: usize, sets: usize) -> Share {
        let used = (frames / LEAST_OF_SET).clamp(1, sets);
        Share { sets: used, bound: (frames / used) as u32 }
    }

    /// Frames that set number `set` may keep the memory of.
    pub(super) fn bound_of(self, set: usize) -> u32 {
        if set < self.sets { self.bound } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_sets_may_keep_does_not_grow_with_their_number() {
        for sets in [1, 2, 16, 1024] {
            for frames in [0, 1, 15, 16, 32, 100, 256, 1 << 14] {
                let share = Share::of(frames, sets);
                let all: usize = (0..sets).map(|set| share.bound_of(set) as usize).sum();
                assert!(all <= frames && all + share.sets > frames, "{frames} frames in {sets} sets: {share:?}");
                assert!(share.sets == 1 || share.bound as usize >= LEAST_OF_SET, "{frames} frames in {sets} sets: {share:?}");
            }
        }
        assert_eq!([32, 256].map(|frames| Share::of(frames, 2).bound), [16, 128], "two CPUs have a set each");
        assert_eq!([32, 256].map(|frames| Share::of(frames, 16).sets), [4, 16]);
    }
}
