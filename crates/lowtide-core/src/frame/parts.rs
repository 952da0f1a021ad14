//! The arena of a frame, in constant time.
//!
//! The frames are cut into equal parts, at most [`PARTS`], none smaller than the buddy's largest
//! block; each stores the arena of its first frame. If an arena begins inside a part, the search
//! goes on from there.

use alloc::boxed::Box;

use super::MAX_ORDER;

/// At most; a byte each.
const PARTS: usize = 1024;

#[derive(Debug)]
pub(super) struct Parts {
    /// Log2 of its frames.
    order: u32,
    arenas: Box<[u8]>,
}

impl Parts {
    /// `ends`: end frames of 1 to 256 arenas, ascending.
    pub(super) fn new(ends: &[usize]) -> Parts {
        let count = ends.last().copied().unwrap_or(0);
        let order = MAX_ORDER.max(count.div_ceil(PARTS).next_power_of_two().trailing_zeros());
        let arena = |part: usize| ends.partition_point(|&end| end <= part << order) as u8;
        Parts { order, arenas: (0..count.div_ceil(1 << order)).map(arena).collect() }
    }

    /// The arena of `frame`, or an earlier one of the same part.
    #[inline]
    pub(super) fn first_of(&self, frame: u32) -> Option<usize> {
        self.arenas.get((frame >> self.order) as usize).map(|&arena| arena.into())
    }

    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&*self.arenas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn looks(ends: &[usize], frame: usize) -> usize {
        let first = Parts::new(ends).first_of(frame as u32).unwrap();
        ends[first..].iter().position(|&end| frame < end).unwrap() + 1
    }

    #[test]
    fn each_frame_is_found_at_once_in_large_arenas_and_soon_in_small_ones() {
        for (each, nodes, most) in [(1 << 20, 1, 1), (1 << 20, 8, 1), (3 << 18, 7, 2), (512, 64, 1), (512 * 5, 64, 2)] {
            let ends = Vec::from_iter((1..=nodes).map(|node| node * each));
            for node in 0..nodes {
                for frame in [node * each, node * each + each / 2, (node + 1) * each - 1] {
                    assert!(looks(&ends, frame) <= most, "frame {frame} of {nodes} nodes of {each}");
                }
            }
        }
        // 2 MiB beside 4 TiB: a part is as large as eight such nodes.
        let ends = [512, 1024, 1 << 30];
        assert_eq!([0, 511, 512, 1024, (1 << 30) - 1].map(|frame| looks(&ends, frame)), [1, 1, 2, 3, 1]);
        let parts = Parts::new(&[100]);
        assert_eq!(
            (parts.first_of(0), parts.first_of(99), parts.first_of(512), parts.first_of(u32::MAX)),
            (Some(0), Some(0), None, None)
        );
    }
}
