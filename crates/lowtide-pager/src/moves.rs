//! Memory that is moved past the gate: by raw system calls, of which nobody sees to it that they come one after the other.
//!
//! The kernel queues an event after it has let go of its locks. So of two threads that change mappings at the same time, the one that
//! came later may be read first: that X was unmapped after that another mapping has been moved to X, where the kernel found room for it.
//! Applied in this order the first would drop the words of the second. Only moves take words to another place, so only where one is read
//! order matters. Then the rest of what is under way is read too (until that is so the kernel lets nobody install a page, or take one
//! away), and what the mappings are then tells what came first: where something has been moved to, and still is, whatever took away what was
//! there before came before it. If that does not tell either, the run ends with a message.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::events::Fault;
use crate::pagemap::Word;
use crate::pager::Pager;
use crate::patience::Patience;
use crate::regions::Range;
use crate::space::Exclusive;
use crate::uffd::{Message, Standing};

/// Most events that can be under way at the same places as a move.
const MOST_CHANGES: usize = 64;
/// Most mappings in which one can land: it is one, which may be cut soon after.
const MOST_PARTS: usize = 8;

/// Where something was moved, the parts that are registered: they are what was moved there.
type Parts = ArrayVec<Range, MOST_PARTS>;

/// Seconds for which changes may go on one after the other.
const SETTLES_SECONDS: u32 = 10;

const NO_ORDER: &[u8] =
    b"the program moves memory (mremap) by raw system calls of several threads, and lowtide can't tell which came first";
const AND_FORKS: &[u8] =
    b"the program forked while it moved memory (mremap) by raw system calls: the child can't know where it is";

/// A change that waits for its turn.
struct Change {
    event: Message,
    /// Of a move.
    landed: Parts,
    /// Of a move: what it brought is what is there now. (There may be more than one to the same place, one after the other.)
    is_there: bool,
    /// Of a move: its old place was unmapped. (With MREMAP_DONTUNMAP it stays.)
    made_room: bool,
}

impl From<Message> for Change {
    fn from(event: Message) -> Change {
        Change { event, landed: Parts::new(), is_there: false, made_room: false }
    }
}

impl Pager {
    /// Whether two samples of [`crate::pager::Host::changes`] say that nobody was in the gate between them.
    pub(crate) fn passed_the_gate(&self, before: Option<usize>) -> bool {
        before.is_some() && (self.host.changes)() == before
    }

    /// Applies a move that was read, with all that is under way. `rest` is what was read behind it; faults go to `put_aside`.
    pub(crate) fn settle_move(
        &self,
        lock: &Exclusive<'_>,
        first: Message,
        rest: &mut impl Iterator<Item = Message>,
        put_aside: &mut impl FnMut(Fault),
    ) {
        let mut waiting = ArrayVec::<Change, MOST_CHANGES>::new();
        let mut patience = Patience::new();
        waiting.push(first.into());
        loop {
            loop {
                let event = match rest.next().map_or_else(|| self.uffd().read(), Ok) {
                    Ok(Message::Fault { addr, thread }) => {
                        put_aside(Fault { addr, thread });
                        continue;
                    }
                    Ok(Message::Fork(_)) | Err(Errno::MFILE | Errno::NFILE) => (self.host.fatal)(AND_FORKS),
                    Ok(event) => event,
                    Err(_) => break,
                };
                if !matches!(event, Message::Remap { .. }) && !waiting.iter().any(|other| meet(&other.event, &event)) {
                    self.happened(lock, event);
                } else if waiting.try_push(event.into()).is_err() {
                    (self.host.fatal)(NO_ORDER);
                }
            }
            // Nothing is under way any more: all that has happened is known.
            if waiting.iter_mut().all(|change| self.look_where_it_landed(change)) {
                return self.apply_in_order(lock, waiting);
            }
            if !patience.wait(SETTLES_SECONDS) {
                (self.host.fatal)(NO_ORDER);
            }
        }
    }

    /// False: changes are under way.
    fn look_where_it_landed(&self, change: &mut Change) -> bool {
        change.landed.clear();
        let Message::Remap { to, len, .. } = change.event else { return true };
        let parts = self.each_registered(Range { start: to, end: to + len }, |part| {
            if change.landed.try_push(part).is_err() {
                (self.host.fatal)(NO_ORDER);
            }
        });
        match parts {
            // It is nowhere: whether something is under way is not known yet.
            Ok(()) if change.landed.is_empty() => self.uffd().standing(self.staging.addresses().start) != Standing::Changing,
            Ok(()) => true,
            Err(_) => false,
        }
    }

    /// Calls `f` with the parts of `range` that are registered with a userfaultfd.
    ///
    /// # Errors
    /// `AGAIN`: the mappings are changing, and events wait or will come. Those of reading the list of mappings.
    pub(crate) fn each_registered(&self, range: Range, mut f: impl FnMut(Range)) -> Result<(), Errno> {
        let mut at = range.start;
        while at < range.end {
            let Some(mapping) = self.present().mappings.next(at)?.filter(|mapping| mapping.start < range.end) else { break };
            let part = Range { start: mapping.start.max(at), end: mapping.end.min(range.end) };
            // Its first page speaks for a mapping, also for one that has been cut meanwhile.
            match self.uffd().standing(part.start) {
                Standing::Changing => return Err(Errno::AGAIN),
                Standing::Registered => f(part),
                Standing::NotRegistered => {}
            }
            at = part.end;
        }
        Ok(())
    }

    fn apply_in_order(&self, lock: &Exclusive<'_>, mut waiting: ArrayVec<Change, MOST_CHANGES>) {
        for i in 0..waiting.len() {
            let Message::Remap { from, to, len } = waiting[i].event else { continue };
            let [old, new] = [from, to].map(|start| Range { start, end: start + len });
            let is_left = waiting[i + 1..].iter().any(|later| {
                matches!(later.event, Message::Remap { to, len, .. }
                if overlap(new, Range { start: to, end: to + len }))
            });
            waiting[i].is_there = !waiting[i].landed.is_empty() && !is_left;
            waiting[i].made_room = waiting[i + 1..].iter().any(|later| {
                matches!(later.event, Message::Unmap { start, end }
                if overlap(old, Range { start, end }))
            });
        }
        let mut moves = ArrayVec::<(Range, Parts), MOST_CHANGES>::new();
        while !waiting.is_empty() {
            let is_next = |i: &usize| (0..waiting.len()).all(|j| j == *i || !comes_before(&waiting, j, *i));
            let Some(next) = (0..waiting.len()).find(is_next) else { (self.host.fatal)(NO_ORDER) };
            let Change { event, landed, .. } = waiting.remove(next);
            if let Message::Remap { to, len, .. } = event {
                let place = Range { start: to, end: to + len };
                if self.holds_words(place) {
                    (self.host.fatal)(NO_ORDER);
                }
                moves.push((place, landed));
            }
            self.happened(lock, event);
        }
        // What is not there any more was unmapped since, which may have been applied before.
        for (place, landed) in moves {
            let mut at = place.start;
            for part in landed.iter().chain(&[Range { start: place.end, end: place.end }]) {
                if at < part.start {
                    self.abandon(lock, Range { start: at, end: part.start });
                }
                at = part.end;
            }
        }
    }

    /// Whether bytes of pages of a range are elsewhere.
    fn holds_words(&self, range: Range) -> bool {
        let mut holds = false;
        self.map.each(range.start / PAGE_SIZE, range.end / PAGE_SIZE, |_, slot| {
            let word = Word::from_bits(slot.load(Ordering::Acquire));
            holds |= matches!(word, Word::Staged(_) | Word::Storing(_) | Word::Swapped(_) | Word::Loading(1..));
        });
        holds
    }
}

/// Whether the change at `j` was made before the one at `i`, of the two.
fn comes_before(changes: &[Change], j: usize, i: usize) -> bool {
    let (one, other) = (&changes[j], &changes[i]);
    if makes_room(one, other) {
        return true;
    }
    !makes_room(other, one) && j < i && meet(&one.event, &other.event)
}

/// Whether `change` took away what was in the place to which `landed` has moved something that is there now.
fn makes_room(change: &Change, landed: &Change) -> bool {
    let Message::Remap { to, len, .. } = landed.event else { return false };
    let taken = match change.event {
        Message::Unmap { start, end } => Range { start, end },
        Message::Remap { from, len, .. } if change.made_room => Range { start: from, end: from + len },
        _ => return false,
    };
    landed.is_there && overlap(taken, Range { start: to, end: to + len })
}

/// Whether two events are about the same place.
fn meet(one: &Message, other: &Message) -> bool {
    places(one).iter().any(|a| places(other).iter().any(|b| overlap(*a, *b)))
}

fn places(event: &Message) -> [Range; 2] {
    const NOWHERE: Range = Range { start: 0, end: 0 };
    match *event {
        Message::Remap { from, to, len } => [from, to].map(|start| Range { start, end: start + len }),
        Message::Unmap { start, end } | Message::Remove { start, end } => [Range { start, end }, NOWHERE],
        _ => [NOWHERE; 2],
    }
}

fn overlap(a: Range, b: Range) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::{mapping, pager, swap_out, swapped, words};
    use std::vec;
    use std::vec::Vec;

    const PAGES: usize = 4;
    const LEN: usize = PAGES * PAGE_SIZE;

    /// Two places that are adopted, the first with pages that are out under entries from 100 on, the second from 200 on.
    fn places() -> Option<(Pager, usize, usize)> {
        let pager = pager()?;
        let [one, other] = [100, 200].map(|entry| {
            let at = mapping(PAGES);
            pager.adopt(Range { start: at, end: at + LEN }).unwrap();
            swap_out(&pager, at, PAGES, entry);
            at
        });
        Some((pager, one, other))
    }

    fn settle(pager: &Pager, events: Vec<Message>) {
        let mut events = events.into_iter();
        let first = events.next().unwrap();
        pager.settle_move(&pager.space.exclusive(), first, &mut events, &mut |_| {});
    }

    fn unmapped(at: usize) -> Message {
        Message::Unmap { start: at, end: at + LEN }
    }

    fn moved(from: usize, to: usize) -> Message {
        Message::Remap { from, to, len: LEN }
    }

    fn forget(at: usize) {
        // SAFETY: memory of this test's own.
        unsafe { rustix::mm::munmap(at as *mut _, LEN).unwrap() };
    }

    /// What is there now was moved there after what was there had been unmapped, whatever was reported first.
    #[test]
    fn what_was_there_before_went_before() {
        let Some((pager, from, to)) = places() else { return };
        settle(&pager, vec![moved(from, to), unmapped(from), unmapped(to)]);
        assert_eq!(words(&pager, to, PAGES), swapped(100, PAGES as u64));
        assert_eq!(words(&pager, from, PAGES), [Word::None; PAGES]);
        assert!(pager.regions.covers(&pager.space.exclusive(), Range { start: to, end: to + LEN }));
    }

    /// The same if what was there has been moved on.
    #[test]
    fn what_was_there_before_was_moved_before() {
        let Some((pager, from, to)) = places() else { return };
        let third = mapping(PAGES);
        pager.adopt(Range { start: third, end: third + LEN }).unwrap();
        settle(&pager, vec![moved(from, to), moved(to, third), unmapped(from), unmapped(to)]);
        assert_eq!(words(&pager, to, PAGES), swapped(100, PAGES as u64));
        assert_eq!(words(&pager, third, PAGES), swapped(200, PAGES as u64));
    }

    /// What is not there any more was unmapped since, or moved on.
    #[test]
    fn what_is_not_there_went_afterwards() {
        let Some((pager, from, to)) = places() else { return };
        let third = mapping(PAGES);
        pager.adopt(Range { start: third, end: third + LEN }).unwrap();
        pager.happened(&pager.space.exclusive(), unmapped(to));
        // SAFETY: nothing of this memory is in lowtide's hands.
        unsafe { pager.uffd().unregister(to, LEN).unwrap() };
        settle(&pager, vec![moved(from, to), unmapped(from), moved(to, third), unmapped(to)]);
        assert_eq!(words(&pager, third, PAGES), swapped(100, PAGES as u64));
        let Some((pager, from, to)) = places() else { return };
        pager.happened(&pager.space.exclusive(), unmapped(to));
        // SAFETY: as above.
        unsafe { pager.uffd().unregister(to, LEN).unwrap() };
        // That it was unmapped was reported before.
        swap_out(&pager, from, PAGES, 100);
        settle(&pager, vec![moved(from, to), unmapped(from)]);
        assert_eq!(words(&pager, to, PAGES), [Word::None; PAGES]);
        assert!(!pager.regions.overlaps(&pager.space.exclusive(), Range { start: to, end: to + LEN }), "nobody serves it");
    }

    /// One thread moves memory there and back and there again, and leaves its old places mapped (MREMAP_DONTUNMAP).
    #[test]
    fn what_one_thread_does_stays_in_order() {
        let Some((pager, one, other)) = places() else { return };
        pager.happened(&pager.space.exclusive(), unmapped(other));
        settle(&pager, vec![moved(one, other), unmapped(one), moved(other, one), unmapped(other), moved(one, other)]);
        assert_eq!(words(&pager, other, PAGES), swapped(100, PAGES as u64));
        assert_eq!(words(&pager, one, PAGES), [Word::None; PAGES]);
    }

    #[test]
    #[should_panic(expected = "which came first")]
    fn what_can_not_have_been_ends_the_run() {
        let Some((pager, from, to)) = places() else { panic!("which came first") };
        settle(&pager, vec![moved(from, to), unmapped(from)]);
    }

    /// A hole, or what was mapped there since, is not taken for adopted.
    #[test]
    fn a_hole_is_not_adopted() {
        let Some(pager) = pager() else { return };
        let at = mapping(3 * PAGES);
        forget(at + LEN);
        pager.adopt(Range { start: at, end: at + 3 * LEN }).unwrap();
        let lock = pager.space.exclusive();
        let gaps: Vec<_> = pager.regions.gaps(&lock, Range { start: at, end: at + 3 * LEN }).collect();
        assert_eq!(gaps, [Range { start: at + LEN, end: at + 2 * LEN }]);
    }
}
