//! Staging, the inactive list: detached pages wait here, in order, to be stored. A fault meanwhile
//! proves a page hot and MOVEs it back.
//!
//! The area is registered with the same userfaultfd: only then can it receive a MOVE, and does the
//! kernel refuse a MOVE while an event is pending. Its batches have the size of the largest folio,
//! or less if RAM is small. One thread fills a batch; later one drains and discards it.
//!
//! A MOVE needs equal protection, so batches become executable for pages of executable memory
//! ([`Staging::prepare`]).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use lowtide_core::ledger::Ledger;
use lowtide_core::lock::{Lock, rank};
use lowtide_core::table::Table;
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use lowtide_sys::uffd::{Uffd, Watched};
use rustix::io::Errno;

use crate::pagemap::ids::{PageNo, StagingFrame};

/// The largest folio.
pub const MAX_BATCH_FRAMES: usize = 512;
/// A MOVE hardly gets cheaper above.
const SMALL_BATCH_FRAMES: usize = 128;
/// Frames per discard: half are counted until it is done, and each interrupts CPUs.
const DISCARDED_FRAMES: usize = 128;
const _: () = assert!(SMALL_BATCH_FRAMES.is_multiple_of(DISCARDED_FRAMES) && MAX_BATCH_FRAMES.is_multiple_of(DISCARDED_FRAMES));
const LARGE: usize = 16 << 20;
const MAX_BATCHES: usize = 160;
/// See [`Staging::registered`] and [`Staging::page_behind`].
const PAGES_BEHIND: usize = 2;

/// Batches per full batch of pages, for holes.
const HOLLOW: usize = 3;

/// Whether batches can be executable: unknown, so far, not (a policy).
const UNTRIED: u8 = 0;
const ALLOWED: u8 = 1;
const FORBIDDEN: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch(u8);

/// Memory behind a frame whose page has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Gone with the page, by a MOVE.
    Went,
    /// Stays until the batch is discarded.
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

pub struct Staging {
    memory: Mapping,
    /// By frame, its raw page; 0: none.
    owners: Table<AtomicU64>,
    /// By frame, the raw entry of a clean copy in the swap cache; 0: none.
    cleans: Table<AtomicU64>,
    batches: usize,
    batch_frames: usize,
    queues: Lock<Queues, { rank::STAGING }>,
    staged: AtomicUsize,
    /// See [`Staging::set_target`].
    target: AtomicUsize,
    /// By batch, ownerless frames with memory.
    spent: [AtomicU32; MAX_BATCHES],
    executable: [AtomicBool; MAX_BATCHES],
    code: AtomicU8,
    lost: AtomicUsize,
    ledger: Arc<dyn Ledger>,
}

impl Staging {
    /// An area of `target` bytes (in batches) and two batches of work space. Error: `NOMEM`.
    pub fn new(target: usize, ledger: Arc<dyn Ledger>) -> Result<Staging, Errno> {
        let batch_frames = if target < LARGE { SMALL_BATCH_FRAMES } else { MAX_BATCH_FRAMES };
        let batch_bytes = batch_frames * PAGE_SIZE;
        let batches = (target.div_ceil(batch_bytes).max(1) * HOLLOW + 2).min(MAX_BATCHES);
        let mut empty = [Batch(0); MAX_BATCHES];
        for (i, s) in empty.iter_mut().take(batches).enumerate() {
            *s = Batch((batches - 1 - i) as u8);
        }
        Ok(Staging {
            // From Linux 6.9 to d03df42ddae1 ("mm: fix deadlock of mremap() against UFFDIO_MOVE") a
            // MOVE can deadlock with an mremap under the same page tables.
            memory: vm::map_apart(batches * batch_bytes + PAGES_BEHIND * PAGE_SIZE, OnFork::Copy)?,
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

    /// Error: as UFFDIO_REGISTER.
    pub fn register(&self, uffd: &Uffd) -> Result<(), Errno> {
        // SAFETY: lowtide touches no empty frame of this private area.
        unsafe { uffd.register(self.memory.addr(), self.registered(), Watched::Missing) }
    }

    /// A failure leaves it registered: nobody forks unreported.
    pub fn unregister_all(&self, uffd: &Uffd) {
        // SAFETY: as for `register`.
        let _ = unsafe { uffd.unregister(self.memory.addr(), self.registered()) };
    }

    /// With the first page behind it, which stays registered whatever becomes of the batches: below
    /// [`Staging::page_behind`] for its userfaultfd (`fork/hold.rs`).
    fn registered(&self) -> usize {
        self.addresses().len() + PAGE_SIZE
    }

    /// Sets the most bytes to stage.
    pub fn set_target(&self, bytes: usize) {
        self.target.store(bytes, Ordering::Relaxed);
    }

    /// Whether staging is above target or short of batches.
    pub fn is_above_target(&self) -> bool {
        self.staged() * PAGE_SIZE > self.target.load(Ordering::Relaxed) || self.empty_batches() < 2
    }

    /// Whether to store pages: below target, to leave room.
    pub fn is_worth_draining(&self) -> bool {
        let target = self.target.load(Ordering::Relaxed);
        self.staged() * PAGE_SIZE > target - target / 4 || self.empty_batches() < self.batches / 3
    }

    pub fn contains(&self, addr: usize) -> bool {
        self.addresses().contains(&addr)
    }

    pub fn addr(&self, frame: StagingFrame) -> usize {
        assert!(frame.index() < self.owners.len(), "no such frame of staging");
        self.memory.addr() + frame.index() * PAGE_SIZE
    }

    pub fn first(&self, batch: Batch) -> StagingFrame {
        StagingFrame::new(u32::from(batch.0) * self.batch_frames as u32)
    }

    pub fn batch_frames(&self) -> usize {
        self.batch_frames
    }

    pub fn frames(&self, batch: Batch) -> impl Iterator<Item = StagingFrame> {
        let first = self.first(batch);
        first.up_to(first + self.batch_frames)
    }

    pub fn same_batch(&self, a: StagingFrame, b: StagingFrame) -> bool {
        a.index() / self.batch_frames == b.index() / self.batch_frames
    }

    /// Records the raw entry of a clean copy; 0: none. Only for the thread that may change the
    /// word.
    pub fn set_clean(&self, frame: StagingFrame, raw: u64) {
        // Release: pairs with the swap in `take_clean`.
        self.cleans[frame.index()].store(raw, Ordering::Release);
    }

    /// Takes that entry. Only for the thread that may change the word.
    pub fn take_clean(&self, frame: StagingFrame) -> u64 {
        // AcqRel: pairs with the Release in `set_clean`, and itself: one thread wins.
        self.cleans[frame.index()].swap(0, Ordering::AcqRel)
    }

    /// The page in `frame`. Changed under the shared space lock by the moving thread, under the
    /// exclusive one by REMAP.
    pub fn owner(&self, frame: StagingFrame) -> Option<PageNo> {
        // Acquire: pairs with the Release in `set_owner`, `arrived` and `left`.
        PageNo::from_raw(self.owners[frame.index()].load(Ordering::Acquire))
    }

    /// For REMAP events, under the exclusive space lock.
    pub fn set_owner(&self, frame: StagingFrame, page: PageNo) {
        // Release: pairs with the Acquire in `owner`, of a drainer without the lock.
        self.owners[frame.index()].store(page.raw(), Ordering::Release);
    }

    /// Records an arrival; the caller informs the ledger. False: the frame had an owner, a bug.
    #[must_use]
    pub fn arrived(&self, frame: StagingFrame, page: PageNo) -> bool {
        self.staged.fetch_add(1, Ordering::Relaxed);
        // AcqRel: pairs with the Acquire in `owner`, and with `left`, after which frames are
        // reused.
        self.owners[frame.index()].swap(page.raw(), Ordering::AcqRel) == 0
    }

    pub fn left(&self, frame: StagingFrame, memory: Memory) {
        // AcqRel: pairs with `arrived` and `owner`; one of two callers counts.
        if self.owners[frame.index()].swap(0, Ordering::AcqRel) != 0 {
            match memory {
                Memory::Stays => _ = self.spent[frame.index() / self.batch_frames].fetch_add(1, Ordering::Relaxed),
                Memory::Went => self.ledger.add(-(PAGE_SIZE as isize)),
            }
            self.staged.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn staged(&self) -> usize {
        self.staged.load(Ordering::Relaxed)
    }

    pub fn addresses(&self) -> core::ops::Range<usize> {
        self.memory.addr()..self.memory.addr() + self.memory.len() - PAGES_BEHIND * PAGE_SIZE
    }

    /// The last page, unused.
    pub fn page_behind(&self) -> usize {
        self.memory.addr() + self.memory.len() - PAGE_SIZE
    }

    pub fn take_empty(&self) -> Option<Batch> {
        let mut q = self.queues.lock();
        q.empty_len = q.empty_len.checked_sub(1)?;
        Some(q.empty[q.empty_len])
    }

    pub fn is_for_code(&self, batch: Batch) -> bool {
        self.executable[batch.0 as usize].load(Ordering::Relaxed)
    }

    /// Whether batches can be executable, tried once. The caller may map memory.
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

    /// Sets a taken empty batch's executable permission. On failure the MOVE fails too.
    pub fn prepare(&self, batch: Batch, is_code: bool) {
        if self.is_for_code(batch) == is_code || is_code && self.refuses_code() {
            return;
        }
        let bytes = self.batch_frames * PAGE_SIZE;
        match self.memory.set_executable(batch.0 as usize * bytes, bytes, is_code) {
            Ok(()) => self.executable[batch.0 as usize].store(is_code, Ordering::Relaxed),
            // Policies may log each try.
            Err(Errno::ACCESS | Errno::PERM) => self.code.store(FORBIDDEN, Ordering::Relaxed),
            Err(_) => {}
        }
    }

    pub fn empty_batches(&self) -> usize {
        self.queues.lock().empty_len
    }

    /// Returns an unpopulated batch, not executable.
    pub fn put_empty(&self, batch: Batch) {
        self.prepare(batch, false);
        let mut q = self.queues.lock();
        let n = q.empty_len;
        q.empty[n] = batch;
        q.empty_len = n + 1;
    }

    pub fn lose(&self, _: Batch) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether all batches are lost.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) >= self.batches
    }

    pub fn put_full(&self, batch: Batch) {
        let mut q = self.queues.lock();
        let at = (q.head + q.full_len) % MAX_BATCHES;
        q.full[at] = batch;
        q.full_len += 1;
    }

    pub fn take_full(&self) -> Option<Batch> {
        let mut q = self.queues.lock();
        q.full_len = q.full_len.checked_sub(1)?;
        let batch = q.full[q.head];
        q.head = (q.head + 1) % MAX_BATCHES;
        Some(batch)
    }

    /// Makes empty frames read as zeros, instead of raising a fault that the reader itself might
    /// have to serve. False: refused (limit of mappings).
    pub fn unregister(&self, batch: Batch, uffd: &Uffd) -> bool {
        let bytes = self.batch_frames * PAGE_SIZE;
        // SAFETY: frames with a page are present, and need no fault; missing ones are empty, and no
        // thread moves pages into a filled batch.
        unsafe { uffd.unregister(self.memory.addr() + batch.0 as usize * bytes, bytes).is_ok() }
    }

    /// Frees a drained batch's memory while unregistered, so without an event. Error: as
    /// UFFDIO_REGISTER; the batch is then lost.
    pub fn discard(&self, batch: Batch, uffd: &Uffd) -> Result<(), Errno> {
        let bytes = self.batch_frames * PAGE_SIZE;
        let offset = batch.0 as usize * bytes;
        // SAFETY: every frame has left (checked under the space lock), and no queue holds the
        // batch.
        unsafe {
            uffd.unregister(self.memory.addr() + offset, bytes)?;
            let spent = &self.spent[batch.0 as usize];
            let mut parts = (self.batch_frames / DISCARDED_FRAMES) as u32;
            let part = bytes / parts as usize;
            for at in (offset..offset + bytes).step_by(part) {
                // Assume an even spread. Half counts before, half after: the error stays below half
                // a part.
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

    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's obligation.
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
