//! Events: what the program did to its mappings. Each is read and applied under the exclusive space lock, so no page is being
//! installed or moved at that moment; only threads that are storing (Storing) or loading (Loading) go on, outside the lock.
//!
//! A removal (MADV_DONTNEED, MADV_FREE) is reported *before* the pages are dropped. What is in memory then must not be evicted until the
//! call has ended, or the old bytes would come back after it: it is marked Removing. What was out is gone at once; what comes
//! in by a fault between the two is dropped or not, as natively, and is the program's race.

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::pagemap::Word;
use crate::pager::{Pager, Worker};
use crate::regions::Range;
use crate::space::Exclusive;
use crate::uffd::Message;

/// Pages that an event takes away between two looks at what lowtide holds.
const PUBLISH_EVERY: usize = 256;

/// What a monitor has to do after reading.
#[derive(Debug)]
pub enum Read {
    /// Serve the fault at this address.
    Fault(usize),
    /// An event was read and applied.
    Event,
    /// The mappings changed in a way that new ones may have to be looked for.
    Remapped,
    /// There was nothing to read.
    Nothing,
}

impl Pager {
    /// Reads one message and, if it is an event, applies it. No lock may be held.
    pub fn read(&self, worker: &mut Worker) -> Read {
        let lock = self.space.exclusive();
        match self.uffd().read() {
            Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
            Err(_) => Read::Nothing,
            Ok(Message::Fault { addr }) => Read::Fault(addr),
            Ok(Message::Fork(child)) => {
                self.forked(&lock, child, worker);
                Read::Event
            }
            Ok(event) => {
                let remapped = matches!(event, Message::Remap { .. });
                self.apply(&lock, &event);
                if remapped { Read::Remapped } else { Read::Event }
            }
        }
    }

    /// Applies an event other than a fork.
    pub(crate) fn apply(&self, lock: &Exclusive<'_>, event: &Message) {
        match *event {
            Message::Unmap { start, end } if !self.staging.contains(start) => self.abandon(lock, Range { start, end }),
            Message::Remove { start, end } if !self.staging.contains(start) => self.removing(lock, start, end),
            Message::Remap { from, to, len } => {
                self.remapped(from, to, len);
                // The kernel keeps the registration of the new place. What a grown mapping adds behind `len` is found by the next
                // look at the maps; the old place, if it is still mapped (MREMAP_DONTUNMAP), by an UNMAP that does not come.
                self.regions.insert(lock, Range { start: to, end: to + len });
            }
            _ => {}
        }
    }

    /// Forgets a range that is mapped no more.
    pub(crate) fn abandon(&self, lock: &Exclusive<'_>, range: Range) {
        self.dropped(lock, range.start, range.end);
        self.regions.remove(lock, range);
    }

    /// The pages of a range are gone for good: lets go of what their words stood for. Memory is given back on the way, and is soon
    /// counted no more.
    fn dropped(&self, lock: &Exclusive<'_>, start: usize, end: usize) {
        let mut forgotten = 0;
        self.map.each(start / PAGE_SIZE, end.div_ceil(PAGE_SIZE), |_, slot| {
            if slot.load(Ordering::Acquire) == Word::None.bits() {
                return;
            }
            match Word::from_bits(slot.swap(Word::None.bits(), Ordering::AcqRel)) {
                // Whoever is at work finds this and cleans up.
                Word::Storing(_) | Word::Loading(_) | Word::Orphan => slot.store(Word::Orphan.bits(), Ordering::Release),
                other => {
                    self.forget(lock, other);
                    forgotten += 1;
                    if forgotten % PUBLISH_EVERY == 0 {
                        self.publish_own();
                    }
                }
            }
        });
        self.publish_own();
    }

    /// The pages of a range will be gone at some time between now and the end of the program's call.
    fn removing(&self, lock: &Exclusive<'_>, start: usize, end: usize) {
        self.dropped(lock, start, end);
        let mut at = start;
        while at < end {
            let Ok(found) = self.present().scan(at, end, 0) else {
                (self.host.fatal)(b"the kernel does not say any more which pages are in memory (PAGEMAP_SCAN)")
            };
            for page in found.iter().flat_map(|(from, to)| from / PAGE_SIZE..to / PAGE_SIZE) {
                // Loading and Storing are Orphan by now: those are not in memory, or only in a frame.
                if self.map.claim(page, Word::None, Word::Removing).is_err() {
                    (self.host.fatal)(b"no memory left for lowtide's page map");
                }
            }
            at = found.walk_end.max(at + PAGE_SIZE);
        }
    }

    /// The call that removed a range has returned: what is in memory there now is new. Called by host threads (the hook of
    /// madvise), hence without a lock: each word is one compare-and-swap.
    pub fn removed(&self, start: usize, len: usize) {
        self.map.each(start / PAGE_SIZE, (start + len).div_ceil(PAGE_SIZE), |_, slot| {
            if slot.load(Ordering::Relaxed) == Word::Removing.bits() {
                let _ = slot.compare_exchange(Word::Removing.bits(), 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        });
    }

    /// Words go where their pages went.
    fn remapped(&self, from: usize, to: usize, len: usize) {
        let (from, to) = (from / PAGE_SIZE, to / PAGE_SIZE);
        self.map.each(from, from + len.div_ceil(PAGE_SIZE), |page, old| {
            if old.load(Ordering::Acquire) == 0 {
                return;
            }
            let new = to + (page - from);
            if self.map.populate(new).is_err() {
                (self.host.fatal)(b"no memory left for lowtide's page map");
            }
            let word = match Word::from_bits(old.swap(0, Ordering::AcqRel)) {
                word @ (Word::Staged(f) | Word::Storing(f)) => {
                    // A thread that is storing it finds the word by the frame's owner.
                    self.staging.owner(f).store(new as u64, Ordering::Release);
                    word
                }
                Word::Loading(0) => Word::Zero,
                Word::Loading(e) => Word::Swapped(e),
                Word::Orphan => {
                    // Dropped before it was moved; the thread at work still looks for it at the old place.
                    old.store(Word::Orphan.bits(), Ordering::Release);
                    return;
                }
                other => other,
            };
            self.map.set(new, word);
        });
    }
}
