//! How much a move has moved. Before Linux 6.15 a call that moves to a given place and makes shorter at once (MREMAP_FIXED) is
//! reported with the length from before: behind what has moved is somebody else's memory then. What stays behind at the old
//! place is unmapped, which is reported next.

use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pager::Pager;

impl Pager {
    /// The same of a move that was reported just now as one of `len` bytes: not more than the thread asked for that has the
    /// turn. Of a call that did not wait for its turn the mappings tell, of which the kernel may make the whole list for one
    /// answer (before Linux 6.11).
    pub(super) fn moved_now(&self, from: usize, to: usize, len: usize) -> usize {
        let [left, place] = (self.host.turn)();
        if left.covers(Range { start: from, end: from + len }) {
            // Where the kernel has chosen the place, nothing was made shorter.
            let is_given = (place.start..place.end).contains(&to);
            return if is_given { len.min(place.end - to) } else { len };
        }
        match self.present().mappings.find(to) {
            Ok(Some(mapping)) => len.min(mapping.end - to),
            // Where nothing is mapped any more, it was unmapped since, and that is reported next.
            _ => len,
        }
    }

    /// The same of what may be an older move, to what the adopted ranges say: it ends where the kernel has made one mapping of
    /// it and an adopted neighbour. What was adopted at the new place was unmapped before, which was reported before, so that
    /// what begins behind it is the neighbour.
    pub(super) fn moved(&self, lock: &Exclusive<'_>, to: usize, len: usize) -> usize {
        self.regions.first_after(lock, to).map_or(len, |neighbour| len.min(neighbour - to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::events::tests::pager;
    use lowtide_core::vm::PAGE_SIZE;

    /// Where nothing is mapped, which says nothing.
    const FROM: usize = 16 * PAGE_SIZE;
    const TO: usize = 64 * PAGE_SIZE;
    const LEN: usize = 8 * PAGE_SIZE;

    fn r(start: usize, len: usize) -> Range {
        Range { start, end: start + len }
    }

    /// As before Linux 6.11, where to ask the kernel takes time, and before 6.15, where it says too much.
    #[test]
    fn what_the_thread_asked_for_that_has_the_turn_is_known_without_a_question() {
        let Some(mut pager) = pager() else { return };
        pager.host.turn = || [r(FROM, LEN), r(TO, LEN / 2)];
        assert_eq!(pager.moved_now(FROM, TO, LEN), LEN / 2);
        // Of several mappings each is reported by itself.
        assert_eq!(pager.moved_now(FROM + PAGE_SIZE, TO + PAGE_SIZE, PAGE_SIZE), PAGE_SIZE);
        assert_eq!(pager.moved_now(FROM + PAGE_SIZE, TO + PAGE_SIZE, LEN - PAGE_SIZE), LEN / 2 - PAGE_SIZE);
        assert_eq!(pager.moved_now(2 * FROM, TO, LEN), LEN, "another thread's");
        pager.host.turn = || [r(FROM, LEN), Range::NONE];
        assert_eq!(pager.moved_now(FROM, TO, LEN), LEN, "to where the kernel likes");
    }
}
