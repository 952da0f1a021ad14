//! Staging: the inactive list. Pages detached from the program wait here, in order of detachment, before they are stored; a
//! fault in the meantime proves that the page is hot and takes it back by a MOVE.
//!
//! The area is registered with the same userfaultfd (only registered memory can receive a MOVE; and only then does the kernel
//! refuse to MOVE while an event waits). It is cut into batches of as many frames as the largest folio has, or fewer where
//! RAM is small. A batch is filled by one thread, queued, later drained by one thread, and emptied in one call.
//!
//! A MOVE is between mappings of one protection. So a batch that is to take pages of executable memory is made executable
//! before it is filled ([`Staging::prepare`]): none in a program without such memory.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use lowtide_core::ledger::Ledger;
use lowtide_core::lock::{Lock, rank};
use lowtide_core::table::Table;
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use rustix::io::Errno;

use crate::pagemap::ids::{PageNo, StagingFrame};
use crate::sys::uffd::{Uffd, Watched};

/// Most frames in a batch: the largest folio.
pub const MAX_BATCH_FRAMES: usize = 512;
/// Frames in a batch of a small staging area: there the cost of a MOVE has nearly levelled out.
const SMALL_BATCH_FRAMES: usize = 128;
/// Frames whose memory is given back at a time: until the kernel has done it, half of them are counted. Each time the other
/// CPUs are interrupted.
const DISCARDED_FRAMES: usize = 128;
const _: () = assert!(SMALL_BATCH_FRAMES.is_multiple_of(DISCARDED_FRAMES) && MAX_BATCH_FRAMES.is_multiple_of(DISCARDED_FRAMES));
/// Bytes from which on an area has large batches.
const LARGE: usize = 16 << 20;
/// Most batches.
const MAX_BATCHES: usize = 160;

/// Batches for each one that the pages would fill without holes.
const HOLLOW: usize = 3;

/// Whether batches can be made executable: not known yet; as far as is known; a rule for this process forbids it.
const UNTRIED: u8 = 0;
const ALLOWED: u8 = 1;
const FORBIDDEN: u8 = 2;

/// A batch by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch(u8);

/// What became of the memory behind a frame whose page has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// It went with the page, by a MOVE.
    Went,
    /// It stays until the batch is discarded.
    Stays,
}

struct Queues {
    empty: [Batch; MAX_BATCHES],
    empty_len: usize,
    /// Ring of filled batches, oldest at `head`.
    full: [Batch; MAX_BATCHES],
    head: usize,
    full_len: usize,
}

/// The staging area.
pub struct Staging {
    memory: Mapping,
    /// By frame, the page whose bytes are in it, raw; 0: none.
    owners: Table<AtomicU64>,
    /// By frame, the raw entry under which the swap cache may hold a clean copy of the page; 0: none.
    cleans: Table<AtomicU64>,
    batches: usize,
    batch_frames: usize,
    queues: Lock<Queues, { rank::STAGING }>,
    staged: AtomicUsize,
    /// See [`Staging::set_target`].
    target: AtomicUsize,
    /// By batch, frames that nobody owns and that still have memory behind them.
    spent: [AtomicU32; MAX_BATCHES],
    /// By batch, whether it may be executed.
    executable: [AtomicBool; MAX_BATCHES],
    /// Whether one can be made so: [`UNTRIED`] and so on.
    code: AtomicU8,
    /// Batches that are never used again.
    lost: AtomicUsize,
    /// Told of the memory behind the frames: pages that wait, and pages that have left but for their bytes.
    ledger: Arc<dyn Ledger>,
}

impl Staging {
    /// A staging area of `target` bytes (rounded up to batches) and two batches to work with. `ledger` is told of the memory
    /// behind its frames.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new(target: usize, ledger: Arc<dyn Ledger>) -> Result<Staging, Errno> {
        let batch_frames = if target < LARGE { SMALL_BATCH_FRAMES } else { MAX_BATCH_FRAMES };
        let batch_bytes = batch_frames * PAGE_SIZE;
        let batches = (target.div_ceil(batch_bytes).max(1) * HOLLOW + 2).min(MAX_BATCHES);
        let mut empty = [Batch(0); MAX_BATCHES];
        for (i, s) in empty.iter_mut().take(batches).enumerate() {
            *s = Batch((batches - 1 - i) as u8);
        }
        Ok(Staging {
            // From Linux 6.9 to d03df42ddae1 ("mm: fix deadlock of mremap() against UFFDIO_MOVE"), a MOVE and an mremap of memory with
            // the same page tables may wait for each other.
            memory: vm::map_apart(batches * batch_bytes + PAGE_SIZE, OnFork::Copy)?,
            owners: Table::new(batches * batch_frames, OnFork::Copy)?,
            cleans: Table::new(batches * batch_frames, OnFork::Copy)?,
            batches,
            batch_frames,
            queues: Lock::new(Queues { empty, empty_len: batches, full: [Batch(0); MAX_BATCHES], head: 0, full_len: 0 }),
            staged: AtomicUsize::new(0),
            target: AtomicUsize::new(target),
            spent: [const { AtomicU32::new(0) }; MAX_BATCHES],
            executable: [const { AtomicBool::new(false) }; MAX_BATCHES],
            code: AtomicU8::new(UNTRIED),
            lost: AtomicUsize::new(0),
            ledger,
        })
    }

    /// Registers the whole area with `uffd`.
    ///
    /// # Errors
    /// Those of UFFDIO_REGISTER.
    pub fn register(&self, uffd: &Uffd) -> Result<(), Errno> {
        // SAFETY: lowtide touches no frame that is empty, and nobody else knows the area.
        unsafe { uffd.register(self.memory.addr(), self.addresses().len(), Watched::Missing) }
    }

    /// How many bytes of pages are to wait here at most, from now on: less than there is room for where other processes of the
    /// run have staging areas too.
    pub fn set_target(&self, bytes: usize) {
        self.target.store(bytes, Ordering::Relaxed);
    }

    /// Whether more pages wait than should, or they are spread over nearly all batches.
    pub fn is_above_target(&self) -> bool {
        self.staged() * PAGE_SIZE > self.target.load(Ordering::Relaxed) || self.empty_batches() < 2
    }

    /// Whether enough of them wait for the reclaimer to store some: less than the target, so that there is room for many before
    /// it is needed again.
    pub fn is_worth_draining(&self) -> bool {
        let target = self.target.load(Ordering::Relaxed);
        self.staged() * PAGE_SIZE > target - target / 4 || self.empty_batches() < self.batches / 3
    }

    /// Whether `addr` is in the area.
    pub fn contains(&self, addr: usize) -> bool {
        self.addresses().contains(&addr)
    }

    /// Address of a frame.
    pub fn addr(&self, frame: StagingFrame) -> usize {
        assert!(frame.index() < self.owners.len(), "no such frame of staging");
        self.memory.addr() + frame.index() * PAGE_SIZE
    }

    /// First frame of a batch.
    pub fn first(&self, batch: Batch) -> StagingFrame {
        StagingFrame::new(u32::from(batch.0) * self.batch_frames as u32)
    }

    /// Frames in a batch.
    pub fn batch_frames(&self) -> usize {
        self.batch_frames
    }

    /// The frames of a batch.
    pub fn frames(&self, batch: Batch) -> impl Iterator<Item = StagingFrame> {
        let first = self.first(batch);
        first.up_to(first + self.batch_frames)
    }

    /// Whether two frames are of one batch.
    pub fn same_batch(&self, a: StagingFrame, b: StagingFrame) -> bool {
        a.index() / self.batch_frames == b.index() / self.batch_frames
    }

    /// Notes the raw entry under which the swap cache may hold a clean copy of the page in `frame`; 0: none. By the thread that
    /// may change the page's word.
    pub fn set_clean(&self, frame: StagingFrame, raw: u64) {
        // Release: pairs with the swap in `take_clean`.
        self.cleans[frame.index()].store(raw, Ordering::Release);
    }

    /// Takes that entry out; 0: there is none. By the thread that may change the page's word.
    pub fn take_clean(&self, frame: StagingFrame) -> u64 {
        // AcqRel: pairs with the Release in `set_clean`, and with itself: one thread gets the entry.
        self.cleans[frame.index()].swap(0, Ordering::AcqRel)
    }

    /// The page whose bytes are in `frame`. Changed with the shared space lock by the thread that moves the page, and by REMAP
    /// events with the exclusive one.
    pub fn owner(&self, frame: StagingFrame) -> Option<PageNo> {
        // Acquire: pairs with the Release in `set_owner`, `arrived` and `left`.
        PageNo::from_raw(self.owners[frame.index()].load(Ordering::Acquire))
    }

    /// The page in `frame` belongs elsewhere from now on: a REMAP event, with the space lock held exclusively.
    pub fn set_owner(&self, frame: StagingFrame, page: PageNo) {
        // Release: pairs with the Acquire in `owner`, for a drainer that looks without the lock.
        self.owners[frame.index()].store(page.raw(), Ordering::Release);
    }

    /// A page arrived in `frame`, which the caller tells the ledger: of many at once. False: the frame had an owner, which must
    /// not be.
    #[must_use]
    pub fn arrived(&self, frame: StagingFrame, page: PageNo) -> bool {
        self.staged.fetch_add(1, Ordering::Relaxed);
        // AcqRel: pairs with the Acquire in `owner`, and with `left`, after which the frame may have another page.
        self.owners[frame.index()].swap(page.raw(), Ordering::AcqRel) == 0
    }

    /// The bytes in `frame` belong to nobody any more.
    pub fn left(&self, frame: StagingFrame, memory: Memory) {
        // AcqRel: pairs with `arrived` and `owner`; of two that say so one counts.
        if self.owners[frame.index()].swap(0, Ordering::AcqRel) != 0 {
            match memory {
                Memory::Stays => _ = self.spent[frame.index() / self.batch_frames].fetch_add(1, Ordering::Relaxed),
                Memory::Went => self.ledger.add(-(PAGE_SIZE as isize)),
            }
            self.staged.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Pages that wait in staging.
    pub fn staged(&self) -> usize {
        self.staged.load(Ordering::Relaxed)
    }

    /// Addresses of the frames.
    pub fn addresses(&self) -> core::ops::Range<usize> {
        self.memory.addr()..self.page_behind()
    }

    /// The address of a page behind them that is not used here.
    pub fn page_behind(&self) -> usize {
        self.memory.addr() + self.memory.len() - PAGE_SIZE
    }

    /// An empty batch to fill.
    pub fn take_empty(&self) -> Option<Batch> {
        let mut q = self.queues.lock();
        q.empty_len = q.empty_len.checked_sub(1)?;
        Some(q.empty[q.empty_len])
    }

    /// Whether a batch was prepared for pages of memory that may be executed.
    pub fn is_for_code(&self, batch: Batch) -> bool {
        self.executable[batch.0 as usize].load(Ordering::Relaxed)
    }

    /// Whether a batch can be made so: tried once, with a page that is nobody's. By a thread that may map memory.
    pub fn takes_code(&self) -> bool {
        if self.code.compare_exchange(UNTRIED, ALLOWED, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let tried = vm::map(PAGE_SIZE, OnFork::Copy).and_then(|page| page.set_executable(0, PAGE_SIZE, true));
            if matches!(tried, Err(Errno::ACCESS | Errno::PERM)) {
                self.code.store(FORBIDDEN, Ordering::Relaxed);
            }
        }
        !self.refuses_code()
    }

    fn refuses_code(&self) -> bool {
        self.code.load(Ordering::Relaxed) == FORBIDDEN
    }

    /// Gives an empty batch, which the caller has taken, the protection of the memory whose pages are to come: executable or
    /// not, beside readable and writable. Where that can't be, a MOVE says so, and the pages stay in their places.
    pub fn prepare(&self, batch: Batch, is_code: bool) {
        if self.is_for_code(batch) == is_code || is_code && self.refuses_code() {
            return;
        }
        let bytes = self.batch_frames * PAGE_SIZE;
        match self.memory.set_executable(batch.0 as usize * bytes, bytes, is_code) {
            Ok(()) => self.executable[batch.0 as usize].store(is_code, Ordering::Relaxed),
            // A rule for this process, which is not tried again and again: some note each try.
            Err(Errno::ACCESS | Errno::PERM) => self.code.store(FORBIDDEN, Ordering::Relaxed),
            Err(_) => {}
        }
    }

    /// How many batches are empty.
    pub fn empty_batches(&self) -> usize {
        self.queues.lock().empty_len
    }

    /// Gives back a batch none of whose frames is populated. While no page is in it, nothing in it may be executed.
    pub fn put_empty(&self, batch: Batch) {
        self.prepare(batch, false);
        let mut q = self.queues.lock();
        let n = q.empty_len;
        q.empty[n] = batch;
        q.empty_len = n + 1;
    }

    /// A batch that is in no queue can't be used any more.
    pub fn lose(&self, _: Batch) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether that has become of all of them: no page can wait here ever again.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) >= self.batches
    }

    /// Queues a filled batch as the youngest.
    pub fn put_full(&self, batch: Batch) {
        let mut q = self.queues.lock();
        let at = (q.head + q.full_len) % MAX_BATCHES;
        q.full[at] = batch;
        q.full_len += 1;
    }

    /// The oldest filled batch.
    pub fn take_full(&self) -> Option<Batch> {
        let mut q = self.queues.lock();
        q.full_len = q.full_len.checked_sub(1)?;
        let batch = q.full[q.head];
        q.head = (q.head + 1) % MAX_BATCHES;
        Some(batch)
    }

    /// From here on a frame of the batch that has lost its page reads as zeros, instead of a fault that its reader itself
    /// might have to serve. Pages can still be moved out.
    pub fn unregister(&self, batch: Batch, uffd: &Uffd) {
        let bytes = self.batch_frames * PAGE_SIZE;
        // What can't be unregistered (the kernel allows only so many mappings) is read as it is.
        // SAFETY: nobody moves pages into a batch that was taken from the queue of filled ones.
        let _ = unsafe { uffd.unregister(self.memory.addr() + batch.0 as usize * bytes, bytes) };
    }

    /// Gives the memory of a drained batch back to the kernel. No event is raised: the range is unregistered meanwhile.
    ///
    /// # Errors
    /// Those of registering again: the batch must then never be used.
    pub fn discard(&self, batch: Batch, uffd: &Uffd) -> Result<(), Errno> {
        let bytes = self.batch_frames * PAGE_SIZE;
        let offset = batch.0 as usize * bytes;
        // SAFETY: every frame of the batch has left (the drainer checked each under the space lock), and the batch is in no
        // queue, so that no thread moves pages from or to it.
        unsafe {
            uffd.unregister(self.memory.addr() + offset, bytes)?;
            let spent = &self.spent[batch.0 as usize];
            let mut parts = (self.batch_frames / DISCARDED_FRAMES) as u32;
            let part = bytes / parts as usize;
            for at in (offset..offset + bytes).step_by(part) {
                // Which frames had memory behind them is not known: as if all parts were alike. Half of them go before the
                // kernel has taken the memory and half after, so that the count is never wrong by more than half of a part.
                let here = spent.load(Ordering::Relaxed) / parts;
                spent.fetch_sub(here, Ordering::Relaxed);
                self.ledger.add(-((here / 2) as isize * PAGE_SIZE as isize));
                self.memory.discard(at, part);
                self.ledger.add(-((here - here / 2) as isize * PAGE_SIZE as isize));
                parts -= 1;
            }
            uffd.register(self.memory.addr() + offset, bytes, Watched::Missing)
        }
    }

    /// Frees the lock whoever holds it.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: handed on to the caller.
        unsafe { self.queues.reset_after_fork() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicIsize;

    #[derive(Debug, Default)]
    struct Held(AtomicIsize);

    impl Ledger for Held {
        fn add(&self, bytes: isize) {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    #[test]
    fn batches_come_out_in_the_order_they_went_in() {
        let held = Arc::new(Held::default());
        let s = Staging::new(3 * SMALL_BATCH_FRAMES * PAGE_SIZE, held.clone()).unwrap();
        let held_pages = || held.0.load(Ordering::Relaxed) / PAGE_SIZE as isize;
        assert_eq!(s.empty_batches(), 3 * HOLLOW + 2);
        let (a, b) = (s.take_empty().unwrap(), s.take_empty().unwrap());
        assert_ne!(a, b);
        s.put_full(a);
        s.put_full(b);
        assert_eq!(s.take_full(), Some(a));
        s.put_empty(a);
        assert_eq!(s.take_full(), Some(b));
        assert_eq!(s.take_full(), None);
        s.put_empty(b);
        assert_eq!(s.empty_batches(), 3 * HOLLOW + 2);
        let arrives = |page| {
            held.add(PAGE_SIZE as isize);
            s.arrived(s.first(b), PageNo::new(page))
        };
        assert!(arrives(77));
        assert_eq!(held_pages(), 1);
        s.left(s.first(b), Memory::Went);
        s.left(s.first(b), Memory::Stays);
        assert_eq!((s.staged(), held_pages()), (0, 0), "leaving twice counts once");
        assert!(arrives(79));
        s.left(s.first(b), Memory::Stays);
        assert_eq!((s.staged(), held_pages()), (0, 1), "the bytes are there until the batch is discarded");
        assert!(arrives(77));
        assert!(!arrives(78), "the frame is taken");
    }
}
