//! Events: what the program did to its mappings. Each is read and applied under one hold of the
//! exclusive space lock, so no page is installed or moved meanwhile; threads that store (Storing)
//! or load (Loading) go on.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use lowtide_sys::uffd::{MOST_READ, Message, SECOND_REPORT_MS, Standing, Uffd};
use rustix::io::Errno;

use crate::mappings::going::Gone;
use crate::pagemap::ids::PageNo;
use crate::pagemap::{END, PageState};
use crate::pager::Pager;
use crate::pages::space::Exclusive;
use crate::pages::worker::{Fault, Worker};

const DESCRIPTOR_TRIES: usize = 1000;

/// What a handler is to do after a read.
#[derive(Debug, Default)]
pub struct Read {
    /// To be served.
    pub faults: ArrayVec<Fault, MOST_READ>,
    /// An event was read and applied.
    pub event: bool,
    /// A large removal is to go on, after the faults.
    pub goes_on: bool,
    /// Mappings changed, so new ones may exist.
    pub remapped: bool,
    pub(crate) child: Option<Uffd>,
    is_whole: bool,
}

impl Read {
    /// Whether no message was read.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty() && !self.event
    }
}

impl Pager {
    /// Reads at most `most` messages and applies their events in order. The caller holds no lock.
    pub fn read(&self, most: usize, worker: &mut Worker) -> Read {
        self.give_way(worker.claimant);
        let mut lock = self.pages.space.exclusive();
        self.look_whether_all_was_read(&lock);
        let mut messages = self.uffd().read_several(most);
        if let Err(Errno::MFILE | Errno::NFILE) = messages {
            // A fork event brings a descriptor (RLIMIT_NOFILE counts lowtide's own, too), and
            // blocks installation until one is free.
            self.close_reserve(&lock);
            // A handler that looks for a thread's CPU holds one for a moment.
            for _ in 0..DESCRIPTOR_TRIES {
                messages = self.uffd().read_several(most);
                if !matches!(messages, Err(Errno::MFILE | Errno::NFILE)) {
                    break;
                }
                rustix::thread::sched_yield();
            }
            if let Err(Errno::MFILE | Errno::NFILE) = messages {
                (self.host.fatal)(b"the program forked, and there is no descriptor left for it (ulimit -n, fs.file-max)");
            }
        }
        let mut read = Read::default();
        for message in messages.into_iter().flatten() {
            self.look_at_order(&lock, &message);
            self.act_on(&mut lock, message, worker, &mut read);
        }
        // Not before the last child is whole: the thread may end this process.
        if read.child.is_none() {
            self.let_be_born(&mut lock, if read.is_whole { SECOND_REPORT_MS } else { 0 });
        }
        read.goes_on = self.let_go_in_turn(&lock, worker.claimant);
        self.keep_reserve();
        read
    }

    fn act_on(&self, lock: &mut Exclusive<'_>, message: Message, worker: &mut Worker, read: &mut Read) {
        read.event |= !matches!(message, Message::Fault { .. });
        read.remapped |= matches!(message, Message::Remap { .. });
        match message {
            Message::Fault { addr, thread, access } => read.faults.push(Fault { addr, thread, access }),
            Message::Fork(child) if self.forks.held_back.begins_with_child(lock) => {
                self.will_report_again(lock, &child);
                read.child = Some(child);
            }
            Message::Fork(child) => {
                self.forked_unannounced(lock, child, worker);
                read.is_whole = true;
            }
            event => self.happened(lock, event),
        }
    }

    pub(crate) fn look_whether_all_was_read(&self, _: &Exclusive<'_>) {
        let mut order = self.mappings.order.lock();
        if !order.is_all_certain() && self.uffd().standing(self.pages.staging.addresses().start) != Standing::Changing {
            order.all_is_certain();
        }
    }

    /// Ends the run if older events may be newer than this one.
    pub(crate) fn look_at_order(&self, _: &Exclusive<'_>, message: &Message) {
        if matches!(message, Message::Fault { .. }) {
            return;
        }
        self.mappings.events_read.fetch_add(1, Ordering::Relaxed);
        let in_turn = |range: Range| (self.host.turn)().covers(range);
        if !self.mappings.order.lock().is_certain(message, in_turn, self.host.is_alone) {
            (self.host.fatal)(
                b"the program moves memory (mremap) by raw system calls of several threads, and lowtide can't tell which came first",
            );
        }
    }

    /// Waits until messages that are read now are applied. For host threads: takes nothing.
    pub fn outlast_reading(&self) {
        self.pages.space.outlast_exclusive();
    }

    /// Applies an event that was just read. Its thread may have gone on: mappings may already be as
    /// later events will say.
    pub(crate) fn happened(&self, lock: &Exclusive<'_>, event: Message) {
        match event {
            Message::Remap { from, to, len } => {
                let len = self.moved_now(from, to, len);
                let place = self.moved_to(from, to, len);
                self.mappings.order.lock().was_unmapped(place);
                if place.end > to + len {
                    self.pass_or_hold_back(lock, Message::Unmap { start: to + len, end: place.end });
                }
                self.pass_or_hold_back(lock, Message::Remap { from, to, len })
            }
            Message::Unmap { start, end } => {
                self.each_unmapped(lock, Range { start, end }, |Range { start, end }| {
                    self.mappings.order.lock().was_unmapped(Range { start, end });
                    self.pass_or_hold_back(lock, Message::Unmap { start, end })
                });
            }
            event => self.pass_or_hold_back(lock, event),
        }
    }

    pub(super) fn pass_or_hold_back(&self, lock: &Exclusive<'_>, event: Message) {
        if !self.forks.held_back.is_on(lock) {
            self.apply(lock, &event);
        } else if !self.forks.held_back.push(lock, &event) {
            (self.host.fatal)(b"the program changed its mappings more often than lowtide can follow while it forked");
        }
    }

    /// In a forked child, also events older than its mappings.
    pub(crate) fn apply(&self, lock: &Exclusive<'_>, event: &Message) {
        match *event {
            Message::Unmap { start, end } if !self.pages.staging.contains(start) => self.abandon(lock, Range { start, end }),
            Message::Remove { start, end } if !self.pages.staging.contains(start) => {
                self.gone(lock, Range { start, end }, Gone::Soon)
            }
            Message::Remap { from, to, len } => {
                let len = self.moved(lock, to, len);
                if PageNo::behind(to + len) > END {
                    (self.host.fatal)(b"the program moved memory (mremap) to above 128 TiB, where lowtide can't follow it");
                }
                // Nothing older is left there, whatever was reported.
                self.gone(lock, Range { start: to, end: to + len }, Gone::Already);
                for start in [from, to] {
                    self.let_go_before_move(lock, Range { start, end: start + len });
                }
                self.remapped(lock, from, to, len);
                // The kernel keeps the new place registered; the next look at the maps finds what
                // has grown behind `len`. The old place, if still mapped (MREMAP_DONTUNMAP), gets
                // no UNMAP.
                self.mappings.regions.insert(lock, Range { start: to, end: to + len });
            }
            _ => {}
        }
    }

    fn remapped(&self, lock: &Exclusive<'_>, from: usize, to: usize, len: usize) {
        let (from, to) = (PageNo::of(from), PageNo::of(to));
        let mut freer = self.store(lock).freer();
        self.pages.map.each(from, from + len.div_ceil(PAGE_SIZE), |page, old| {
            if old.peek() == PageState::None {
                return;
            }
            let new = to + (page - from);
            if self.pages.map.populate(new).is_err() {
                (self.host.fatal)(b"no memory left for lowtide's page map");
            }
            let word = match old.take() {
                word @ (PageState::Staged(f) | PageState::Storing(f)) => {
                    self.pages.staging.set_owner(f, new);
                    word
                }
                PageState::Loading(0, _) => PageState::Zero,
                PageState::Loading(e, _) => PageState::Swapped(e),
                orphan @ PageState::Orphan(..) => {
                    old.set(orphan);
                    return;
                }
                other => other,
            };
            self.pages.map.get(new).orphaned().into_iter().for_each(|word| self.forget(&mut freer, word));
            self.pages.map.set(new, word);
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    use crate::mappings::Changes;
    use crate::pager::Host;
    use lowtide_core::codec::Codec;
    use lowtide_core::store::{Store, StoreConfig};
    use lowtide_sys::uffd::NEEDED_FEATURES;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

    /// A pager without threads: nothing is evicted, nothing faults. None: no right to a
    /// userfaultfd.
    pub(crate) fn pager() -> Option<Pager> {
        pager_with(NEEDED_FEATURES)
    }

    pub(crate) fn pager_with(features: u64) -> Option<Pager> {
        let uffd = match Uffd::open(features) {
            Ok(uffd) => uffd,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "cannot run here, and CI must not skip: userfaultfd: {error}");
                crate::skipped::skipped(format_args!("userfaultfd with fork events needs root or CAP_SYS_PTRACE: {error}"));
                return None;
            }
        };
        let store = Store::new(StoreConfig { pool_limit: 1 << 20, accept_percent: 90, codec: Codec::Lz4 }).unwrap();
        let host = Host {
            fatal: |text| panic!("{}", std::string::String::from_utf8_lossy(text)),
            lost: |text| panic!("{}", std::string::String::from_utf8_lossy(text)),
            warn: |_| {},
            waits: || {},
            open_uffd: || Uffd::open(NEEDED_FEATURES),
            open_page_map: lowtide_sys::present::Present::open,
            open_memory: || None,
            has_page_map: || true,
            steps: 1,
            turn: || Changes::NONE,
            is_alone: || true,
            may_have_grown: |_| false,
            child_wants_to_run: || false,
            undisturbed: |call| call(),
            has_thread: |_| false,
            changes_are_over: || false,
        };
        // SAFETY: zeros are a valid Proc.
        let proc = std::boxed::Box::leak(std::boxed::Box::new(unsafe { core::mem::zeroed() }));
        Some(Pager::new(uffd, store, 1 << 20, proc, host).unwrap())
    }

    /// Accessible pages between inaccessible ones: a mapping of their own.
    pub(crate) fn mapping(pages: usize) -> usize {
        let whole = (pages + 32) * PAGE_SIZE;
        // SAFETY: fresh memory of the kernel's choice, and a part of it.
        unsafe {
            let at = rustix::mm::mmap_anonymous(core::ptr::null_mut(), whole, ProtFlags::empty(), MapFlags::PRIVATE).unwrap();
            let inner = at.cast::<u8>().add(16 * PAGE_SIZE);
            rustix::mm::mprotect(inner.cast(), pages * PAGE_SIZE, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
            inner as usize
        }
    }

    pub(crate) fn swap_out(pager: &Pager, at: usize, pages: usize, entry: u64) {
        for i in 0..pages {
            pager.pages.map.populate(PageNo::of(at) + i).unwrap();
            pager.pages.map.set(PageNo::of(at) + i, PageState::Swapped(entry + i as u64));
        }
    }

    pub(crate) fn words(pager: &Pager, at: usize, pages: usize) -> std::vec::Vec<PageState> {
        (0..pages).map(|i| pager.pages.map.get(PageNo::of(at) + i)).collect()
    }

    fn swapped(entry: u64, pages: u64) -> std::vec::Vec<PageState> {
        (entry..entry + pages).map(PageState::Swapped).collect()
    }

    #[test]
    fn a_length_that_is_too_long_ends_with_the_mapping() {
        let Some(mut pager) = pager() else { return };
        pager.kernel.tells_moved_length = false;
        let (from, to) = (mapping(8), mapping(4));
        swap_out(&pager, from, 8, 100);
        let lock = pager.pages.space.exclusive();
        pager.happened(&lock, Message::Remap { from, to, len: 8 * PAGE_SIZE });
        assert_eq!(words(&pager, to, 4), swapped(100, 4));
        assert_eq!(words(&pager, to + 4 * PAGE_SIZE, 4), [PageState::None; 4], "nothing has moved to behind the mapping");
        assert_eq!(words(&pager, from + 4 * PAGE_SIZE, 4), swapped(104, 4), "the rest is unmapped next");
        let gaps: std::vec::Vec<_> = pager.mappings.regions.gaps(&lock, Range { start: to, end: to + 8 * PAGE_SIZE }).collect();
        assert_eq!(
            gaps,
            [Range { start: to + 4 * PAGE_SIZE, end: to + 8 * PAGE_SIZE }],
            "what is not registered is in no region"
        );
    }

    /// The kernel has merged the moved pages with a registered neighbour.
    #[test]
    fn a_length_that_is_too_long_ends_with_a_registered_neighbour() {
        let Some(mut pager) = pager() else { return };
        pager.kernel.tells_moved_length = false;
        let (from, to) = (mapping(8), mapping(8));
        let neighbour = Range { start: to + 4 * PAGE_SIZE, end: to + 8 * PAGE_SIZE };
        swap_out(&pager, from, 8, 100);
        swap_out(&pager, neighbour.start, 4, 200);
        let lock = pager.pages.space.exclusive();
        pager.mappings.regions.insert(&lock, neighbour);
        pager.happened(&lock, Message::Remap { from, to, len: 8 * PAGE_SIZE });
        assert_eq!(words(&pager, to, 4), swapped(100, 4));
        assert_eq!(words(&pager, neighbour.start, 4), swapped(200, 4), "the neighbour's pages are where they were");
    }

    /// With five-level page tables programs map memory there; its first removal would end the run.
    #[test]
    fn what_can_have_no_words_is_not_registered() {
        let Some(pager) = pager() else { return };
        let end = END.addr();
        for (start, behind) in [(end - PAGE_SIZE, end + PAGE_SIZE), (end, end + PAGE_SIZE), (1 << 55, 1 << 56)] {
            assert_eq!(pager.register(Range { start, end: behind }), Err(Errno::RANGE), "{start:#x}");
        }
        assert_eq!(pager.register(Range { start: end - PAGE_SIZE, end }), Err(Errno::INVAL));
    }

    #[test]
    fn what_was_being_loaded_where_something_is_moved_to_is_let_go_of() {
        use crate::pagemap::Claimant;
        let Some(pager) = pager() else { return };
        let (from, to, by) = (mapping(8), mapping(8), Claimant::new());
        let lock = pager.pages.space.exclusive();
        for (i, at) in [(0, from), (1, from), (0, to), (1, to), (2, to)].map(|(i, at)| (i, PageNo::of(at) + i)) {
            let word = if at == PageNo::of(to) + i { PageState::Loading(0, by) } else { PageState::Zero };
            assert_eq!(pager.pages.map.claim(at, PageState::None, word), Ok(true));
            pager.pages.zero_now.fetch_add(1, Ordering::Relaxed);
        }
        pager.happened(&lock, Message::Unmap { start: to, end: to + 8 * PAGE_SIZE });
        assert_eq!(words(&pager, to, 3), [PageState::Orphan(0, by); 3]);
        pager.happened(&lock, Message::Remap { from, to, len: 8 * PAGE_SIZE });
        let moved = [PageState::Zero, PageState::Zero, PageState::Orphan(0, by)];
        assert_eq!(words(&pager, to, 3), moved, "where nothing is out there is nothing in the way of that thread");
        assert_eq!(pager.pages.zero_now.load(Ordering::Relaxed), 3, "the two that have moved, and one that it will find");
    }

    #[test]
    fn words_of_another_time_are_dropped_when_a_range_is_registered() {
        let Some(pager) = pager() else { return };
        let at = mapping(8);
        let old = Range { start: at + 2 * PAGE_SIZE, end: at + 4 * PAGE_SIZE };
        pager.register(old).unwrap();
        for page in 0..8 {
            pager.pages.map.populate(PageNo::of(at) + page).unwrap();
            pager.pages.map.set(PageNo::of(at) + page, PageState::Zero);
            pager.pages.zero_now.fetch_add(1, Ordering::Relaxed);
        }
        pager.register(Range { start: at, end: at + 8 * PAGE_SIZE }).unwrap();
        let mut expected = [PageState::None; 8];
        expected[2..4].fill(PageState::Zero);
        assert_eq!(words(&pager, at, 8), expected, "but for those of what was registered before");
    }
}
