//! How the frames that all lists may keep are divided.
//!
//! With few frames, CPUs share few sets: one without room for the longest run is useless, and a
//! minimum per CPU would make memory grow with the CPUs.

use super::MAX_RUN;

/// If several are used: the longest run.
pub(super) const LEAST_OF_SET: usize = MAX_RUN as usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    /// The others keep no memory.
    pub(super) sets: usize,
    /// Frames with memory, each.
    pub(super) bound: u32,
}

impl Share {
    /// Of `sets` sets that may keep memory of `frames` frames together.
    pub(super) fn of(frames: usize, sets: usize) -> Share {
        let used = (frames / LEAST_OF_SET).clamp(1, sets);
        Share { sets: used, bound: (frames / used) as u32 }
    }

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
