//! A child that gets all of its memory at once: one that can't serve itself, is not ready in time, or was forked unannounced.

use rustix::io::Errno;
use rustix::thread::{Timespec, nanosleep};

use super::Whose;
use super::handover::UNDONE;
use crate::fault::worker::Worker;
use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pagemap::PageState;
use crate::pager::Pager;
use crate::sys::uffd::{Message, Uffd};

/// So many pages are brought in at a time, and then those have a turn who serve the parent's faults: without this they would wait
/// for seconds where gigabytes are out.
const BATCH: usize = 64;
/// Long enough for one who sleeps to wake.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

impl Pager {
    /// A fork event was read of which nobody had said a word.
    pub(crate) fn forked_unannounced(&self, lock: &mut Exclusive<'_>, child: &Uffd, worker: &mut Worker) {
        // (Where there are no hooks, `lowtide run` enters the child, or says why not.)
        if !self.proc().forks_unseen() {
            (self.host.warn)(
                b"the program forked by a raw system call: the child's memory was brought in whole and is not limited",
            );
        }
        self.fill_child(lock, child, Whose::Parents, worker);
        self.let_be_born(lock);
    }

    /// The child gets all of its memory, and no references; false: it is dead.
    pub(super) fn make_whole(&self, lock: &mut Exclusive<'_>, child: &Uffd, worker: &mut Worker) -> bool {
        let handover = self.handover();
        lock.while_free(|| self.is_about_to_wait(worker));
        let alive = self.fill_child(lock, child, Whose::Childs, worker);
        // Release: what was filled comes before. If the child has them already, it frees what it refers to by itself.
        if alive && handover.claim_references(UNDONE) {
            self.store(lock).fork_child_died();
        }
        alive
    }

    /// Brings in all of a child's pages that are in lowtide's hands; false: it is dead.
    fn fill_child(&self, lock: &mut Exclusive<'_>, child: &Uffd, whose: Whose, worker: &mut Worker) -> bool {
        // SAFETY of the data: no word changes but by operations under way, for the exclusive lock is held throughout, or the
        // pager is paused and events are held back. A page that one of them is storing or loading is still readable where its
        // word says.
        let mut gone = [Range { start: 0, end: 0 }; 32];
        let mut gone_len = 0;
        let (mut dead, mut pages) = (false, 0);
        self.map.each_used(|page, slot| {
            let word = slot.get();
            let here =
                !matches!(word, PageState::Staged(_) | PageState::Storing(_) | PageState::Swapped(_) | PageState::Loading(..))
                    || matches!(word, PageState::Loading(0, _));
            // (What is dropped is no child's.)
            if dead || here || self.going.has(page) {
                return;
            }
            let Some(page) = self.held_back.in_memory(lock, whose, page) else { return };
            pages += 1;
            if whose == Whose::Childs && pages % BATCH == 0 && !self.held_back.is_nearly_full(lock) {
                lock.while_free(|| drop(nanosleep(&PAUSE)));
            }
            loop {
                if gone[..gone_len].iter().any(|r| (r.start..r.end).contains(&page.addr())) {
                    return;
                }
                match self.copy_to(lock, child, whose, page, worker) {
                    Ok(()) | Err(Errno::NOENT | Errno::INVAL | Errno::FAULT) => return,
                    Err(Errno::SRCH) => {
                        dead = true;
                        return;
                    }
                    Err(_) => {}
                }
                while let Ok(message) = child.read() {
                    match message {
                        // It is woken when its page comes, or at the end.
                        Message::Fault { .. } => {}
                        Message::Unmap { start, end } | Message::Remove { start, end } if gone_len < gone.len() => {
                            gone[gone_len] = Range { start, end };
                            gone_len += 1;
                        }
                        _ => (self.host.fatal)(b"a forked child changed its mappings before lowtide could follow"),
                    }
                }
            }
        });
        !dead
    }
}
