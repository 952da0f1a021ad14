//! How much a move has moved. Before Linux 6.15 a call that moves to a given place and shortens
//! (MREMAP_FIXED) reports the old length, though other memory lies behind the moved pages. The rest
//! of the old place is unmapped and reported next.

use lowtide_sys::Range;
use lowtide_sys::release::Release;
use lowtide_sys::uffd::Standing;

use crate::mappings::Changes;
use crate::pager::Pager;
use crate::pages::space::Exclusive;

/// Whether the kernel reports the moved length.
pub(crate) fn tells_length(kernel: Release) -> bool {
    kernel >= (6, 15, 0)
}

impl Pager {
    /// The moved length of a just read move: what the thread with the turn asked for. Without the
    /// turn the mappings tell (before Linux 6.11 each answer may take the whole list). They may be
    /// several by now: the thread may have protected a part without an event.
    pub(super) fn moved_now(&self, from: usize, to: usize, len: usize) -> usize {
        let Changes { from: left, to: place, .. } = (self.host.turn)();
        if left.covers(Range { start: from, end: from + len }) {
            // Where the kernel chose the place, nothing was made shorter.
            let is_given = (place.start..place.end).contains(&to);
            return if is_given { len.min(place.end - to) } else { len };
        }
        if self.kernel.tells_moved_length {
            return len;
        }
        let mut end = to;
        while end < to + len {
            match self.present().mappings.find(end) {
                // Moved memory is registered. (The kernel does not tell while changes are on their
                // way.)
                Ok(Some(_)) if end > to && self.uffd().standing(end) != Standing::Registered => return end - to,
                Ok(Some(mapping)) => end = mapping.end,
                _ => return len,
            }
        }
        len
    }

    /// Where it is now, with what it has grown by: nothing older is left there.
    pub(super) fn moved_to(&self, from: usize, to: usize, len: usize) -> Range {
        let (left, place) = (Range { start: from, end: from + len }, Range { start: to, end: to + len });
        let changes = (self.host.turn)();
        if !changes.from.covers(left) {
            return self.moved_raw(place);
        }
        // Several mappings at once don't grow.
        let grown = if from == changes.from.start { to.saturating_add(changes.len) } else { 0 };
        Range { end: place.end.max(grown), ..place }
    }

    /// The same for a raw call. Ends the run if it has moved to where an UNMAP that looks refused
    /// leaves bytes.
    fn moved_raw(&self, place: Range) -> Range {
        let to = place.start;
        // The call's own, if it gives the place.
        let own = self.mappings.order.lock().refused_at(to);
        let place = Range { end: own.map_or(place.end, |own| own.end.max(place.end)), ..place };
        let grown = Range { start: place.end, end: usize::MAX };
        let in_doubt = self.mappings.order.lock().in_doubt(grown, self.host.is_alone);
        if !in_doubt.is_empty() {
            let end = self.mapping_at(to).end;
            in_doubt.into_iter().filter(|part| part.start < end).for_each(|part| self.must_hold_nothing_unmapped(part));
        }
        place
    }

    /// The same for an older move: it ends at the next registered range. Earlier ranges at the new
    /// place were unmapped and reported before.
    pub(super) fn moved(&self, lock: &Exclusive<'_>, to: usize, len: usize) -> usize {
        if self.kernel.tells_moved_length {
            return len;
        }
        self.mappings.regions.first_after(lock, to).map_or(len, |neighbour| len.min(neighbour - to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::events::tests::{mapping, pager, swap_out, words};
    use crate::pagemap::PageState;
    use lowtide_core::vm::PAGE_SIZE;
    use lowtide_sys::uffd::Message;
    use rustix::mm::MprotectFlags;
    use std::vec::Vec;

    /// Nothing is mapped here.
    const FROM: usize = 16 * PAGE_SIZE;
    const TO: usize = 64 * PAGE_SIZE;
    const LEN: usize = 8 * PAGE_SIZE;

    fn r(start: usize, len: usize) -> Range {
        Range { start, end: start + len }
    }

    /// As before Linux 6.11 (lookups take time) and 6.15 (the length is wrong).
    #[test]
    fn what_the_thread_asked_for_that_has_the_turn_is_known_without_a_question() {
        let Some(mut pager) = pager() else { return };
        pager.host.turn = || Changes { from: r(FROM, LEN), to: r(TO, LEN / 2), len: LEN / 2 };
        assert_eq!(pager.moved_now(FROM, TO, LEN), LEN / 2);
        assert_eq!(pager.moved_now(FROM + PAGE_SIZE, TO + PAGE_SIZE, PAGE_SIZE), PAGE_SIZE);
        assert_eq!(pager.moved_now(FROM + PAGE_SIZE, TO + PAGE_SIZE, LEN - PAGE_SIZE), LEN / 2 - PAGE_SIZE);
        assert_eq!(pager.moved_now(2 * FROM, TO, LEN), LEN, "another thread's");
        pager.host.turn = || Changes { len: LEN, ..Changes::of(r(FROM, LEN)) };
        assert_eq!(pager.moved_now(FROM, TO, LEN), LEN, "to where the kernel likes");
    }

    /// A raw call: the thread protects a part of the moved memory before the move is applied.
    #[test]
    fn what_is_protected_since_has_moved_all_the_same() {
        for tells in [true, false] {
            let Some(mut pager) = pager() else { return };
            pager.kernel.tells_moved_length = tells;
            let (from, to) = (mapping(8), mapping(8));
            pager.register(r(to, LEN)).unwrap();
            swap_out(&pager, from, 8, 100);
            // SAFETY: the second half of the mapping.
            unsafe { rustix::mm::mprotect((to + LEN / 2) as *mut _, LEN / 2, MprotectFlags::READ).unwrap() };
            let lock = pager.pages.space.exclusive();
            pager.mappings.regions.remove(&lock, r(to, LEN));
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
