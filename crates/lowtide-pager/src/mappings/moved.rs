//! How much a move has moved. Before Linux 6.15 a call that moves to a given place and makes shorter at once (MREMAP_FIXED) is
//! reported with the length from before: behind what has moved is somebody else's memory then. What stays behind at the old
//! place is unmapped, which is reported next. From 6.15 on the length is what has moved.

use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pager::Pager;
use crate::sys::release::Release;
use crate::sys::uffd::Standing;

/// Whether the kernel reports how much has moved.
pub(crate) fn tells_length(kernel: Release) -> bool {
    kernel >= (6, 15, 0)
}

impl Pager {
    /// The same of a move that was reported just now as one of `len` bytes: not more than the thread asked for that has the
    /// turn. Of a call that did not wait for its turn the mappings tell, of which the kernel may make the whole list for one
    /// answer (before Linux 6.11). What has moved may be several mappings by now: the thread may have gone on, and protected a
    /// part of it, of which no event tells.
    pub(super) fn moved_now(&self, from: usize, to: usize, len: usize) -> usize {
        let [left, place] = (self.host.turn)();
        if left.covers(Range { start: from, end: from + len }) {
            // Where the kernel has chosen the place, nothing was made shorter.
            let is_given = (place.start..place.end).contains(&to);
            return if is_given { len.min(place.end - to) } else { len };
        }
        if self.tells_moved_length {
            return len;
        }
        let mut end = to;
        while end < to + len {
            match self.present().mappings.find(end) {
                // What has moved is registered. (While changes are on their way, as those of a call that makes shorter are until
                // all of its events were read, the kernel doesn't say whether something is.)
                Ok(Some(_)) if end > to && self.uffd().standing(end) != Standing::Registered => return end - to,
                Ok(Some(mapping)) => end = mapping.end,
                // Where nothing is mapped any more, it was unmapped since, and that is reported next.
                _ => return len,
            }
        }
        len
    }

    /// The same of what may be an older move, to what the adopted ranges say: it ends where the kernel has made one mapping of
    /// it and an adopted neighbour. What was adopted at the new place was unmapped before, which was reported before, so that
    /// what begins behind it is the neighbour.
    pub(super) fn moved(&self, lock: &Exclusive<'_>, to: usize, len: usize) -> usize {
        if self.tells_moved_length {
            return len;
        }
        self.regions.first_after(lock, to).map_or(len, |neighbour| len.min(neighbour - to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::events::tests::{mapping, pager, swap_out, words};
    use crate::pagemap::PageState;
    use crate::sys::uffd::Message;
    use lowtide_core::vm::PAGE_SIZE;
    use rustix::mm::MprotectFlags;
    use std::vec::Vec;

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

    /// A raw call: the thread goes on as soon as the move was read, and protects a part of what has moved before the move is
    /// applied. Where the kernel says how much has moved, and where it does not.
    #[test]
    fn what_is_protected_since_has_moved_all_the_same() {
        for tells in [true, false] {
            let Some(mut pager) = pager() else { return };
            pager.tells_moved_length = tells;
            let (from, to) = (mapping(8), mapping(8));
            pager.adopt(r(to, LEN)).unwrap();
            swap_out(&pager, from, 8, 100);
            // SAFETY: the second half of the mapping.
            unsafe { rustix::mm::mprotect((to + LEN / 2) as *mut _, LEN / 2, MprotectFlags::READ).unwrap() };
            let lock = pager.space.exclusive();
            pager.regions.remove(&lock, r(to, LEN));
            pager.happened(&lock, Message::Remap { from, to, len: LEN });
            assert_eq!(words(&pager, to, 8), (100..108).map(PageState::Swapped).collect::<Vec<_>>(), "{tells}");
            assert_eq!(words(&pager, from, 8), [PageState::None; 8]);
        }
    }

    #[test]
    fn how_much_has_moved_is_reported_from_6_15_on() {
        assert!([(6, 15, 0), (6, 18, 3), (7, 0, 0)].into_iter().all(tells_length));
        assert!(![(6, 8, 0), (6, 12, 117), (6, 14, 9)].into_iter().any(tells_length));
    }
}
