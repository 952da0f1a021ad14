//! A thread's private means to serve or evict: buffers, and the threads of the program that wait
//! for it.

use arrayvec::ArrayVec;
use lowtide_core::store::{Page, Scratch};
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use lowtide_sys::uffd::{Access, MOST_READ, Uffd};
use lowtide_wire::segment::FaultKind;
use rustix::io::Errno;

use crate::pagemap::Claimant;
use crate::pagemap::ids::PageNo;

/// Pages loaded and installed at a time: bounds the buffer, and the space lock's hold.
pub const CHUNK: usize = 64;
/// Enough for most faults.
const KEPT: usize = 8;

/// A thread of the program that waits for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The page's address.
    pub addr: usize,
    /// The thread's id.
    pub thread: u32,
    /// The kind of access.
    pub access: Access,
}

/// What a worker's thread may do, and which descriptors it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Everything: the reclaimer.
    All,
    /// Everything but to wait for pages: threads that serve them.
    Serve,
    /// As `Serve`, without devices: in a thread of the program other files may have lowtide's
    /// descriptor numbers. The userfaultfd is there, and the page map if
    /// [`Host::has_page_map`](crate::pager::Host::has_page_map) says so.
    Memory,
}

impl Rights {
    /// Whether the thread may wait for pages and for room. Handlers, which serve them, must not.
    pub fn may_wait(self) -> bool {
        self == Rights::All
    }

    /// Whether it may use lowtide's files: devices, the page map, the list of mappings.
    pub fn has_devices(self) -> bool {
        self != Rights::Memory
    }
}

/// The private means of one thread.
pub struct Worker {
    scratch: Scratch,
    buffer: Mapping,
    used: usize,
    rights: Rights,
    number: usize,
    waiters: Waiters,
    /// The next one last.
    in_hand: ArrayVec<Fault, MOST_READ>,
    pub(crate) claimant: Claimant,
    waited: bool,
    pub(crate) counted: Option<FaultKind>,
}

impl Worker {
    /// Buffers for one thread.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new(rights: Rights) -> Result<Worker, Errno> {
        let mut scratch = Scratch::new().map_err(|_| Errno::NOMEM)?;
        scratch.keep_to_memory(!rights.has_devices());
        Ok(Worker {
            scratch,
            buffer: vm::map(CHUNK * PAGE_SIZE, OnFork::Copy)?,
            used: 0,
            rights,
            number: 0,
            waiters: Waiters::default(),
            in_hand: ArrayVec::new(),
            claimant: Claimant::new(),
            waited: false,
            counted: None,
        })
    }

    #[must_use]
    pub(crate) fn numbered(mut self, number: usize) -> Worker {
        self.number = number;
        self
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Its thread's rights.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    pub(crate) fn take_in_hand(&mut self, faults: &[Fault]) {
        self.in_hand.extend(faults.iter().rev().copied());
        self.waited = false;
    }

    pub(crate) fn next_in_hand(&mut self) -> Option<Fault> {
        self.in_hand.pop()
    }

    /// Whether other threads than the one being served wait.
    pub(crate) fn keeps_others(&self) -> bool {
        !self.in_hand.is_empty() || !self.waiters.0.is_empty()
    }

    /// Since it took faults in hand.
    pub(crate) fn has_waited(&self) -> bool {
        self.waited
    }

    pub(crate) fn installed(&mut self, first: PageNo, end: PageNo) {
        self.waiters.installed(first, end);
    }

    /// Wakes the threads that wait for pages installed since the last call. Last, without a lock or
    /// an operation: the woken threads may take this CPU.
    pub fn wake(&mut self, uffd: &Uffd) {
        for (first, end) in self.waiters.0.take() {
            uffd.wake(first.addr(), (end - first) * PAGE_SIZE);
        }
    }

    /// This thread needs the installed pages itself.
    pub fn forget_waiters(&mut self) {
        self.waiters.0.clear();
    }

    /// Before a slow step: wakes threads whose pages have come, and returns other faults in hand to
    /// the kernel (their threads fault again, for other handlers). Without the space lock; in an
    /// operation it delays a fork.
    pub(crate) fn is_about_to_wait(&mut self, uffd: &Uffd) {
        self.waited = true;
        self.wake(uffd);
        for Fault { addr, .. } in self.in_hand.drain(..) {
            uffd.wake(addr, PAGE_SIZE);
        }
    }

    pub(crate) fn forget_compressor(&mut self) -> bool {
        self.scratch.forget_compressor()
    }

    pub(crate) fn can_rest(&self) -> bool {
        self.used > KEPT || self.scratch.has_compressor()
    }

    /// Frees most of the buffer and zstd's compressor: with a worker on each CPU, most of lowtide's
    /// memory in many processes.
    pub(crate) fn rests(&mut self) {
        self.forget_compressor();
        if self.used > KEPT {
            // SAFETY: `&mut self`: no reference into the buffer exists.
            unsafe { self.buffer.discard(KEPT * PAGE_SIZE, (self.used - KEPT) * PAGE_SIZE) }
            self.used = KEPT;
        }
    }

    pub(crate) fn gives_all_back(&mut self) {
        self.scratch.forget_contexts();
        // SAFETY: as in `rests`.
        unsafe { self.buffer.discard(0, self.used * PAGE_SIZE) }
        self.used = 0;
    }

    pub(crate) fn scratch(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    /// `pages`: how many of the buffer are needed.
    pub(crate) fn parts(&mut self, pages: usize) -> (&mut [Page; CHUNK], &mut Scratch) {
        self.used = self.used.max(pages);
        // SAFETY: the mapping has CHUNK pages, any bytes are a valid Page, and `&mut self` makes
        // the reference unique.
        (unsafe { &mut *self.buffer.as_ptr().cast() }, &mut self.scratch)
    }

    pub(crate) fn buffer_and_waiters(&mut self) -> (&[Page; CHUNK], &mut Waiters) {
        // SAFETY: as in `parts`.
        (unsafe { &*self.buffer.as_ptr().cast() }, &mut self.waiters)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: references into it borrow `self`.
        unsafe { self.buffer.retire() }
    }
}

#[derive(Default)]
pub(crate) struct Waiters(ArrayVec<(PageNo, PageNo), MOST_READ>);

impl Waiters {
    pub(crate) fn installed(&mut self, first: PageNo, end: PageNo) {
        if first >= end {
            return;
        }
        let is_full = self.0.is_full();
        match self.0.last_mut() {
            // Runs need not meet: a thread in between faults again.
            Some(last) if is_full || (first <= last.1 && last.0 <= end) => *last = (last.0.min(first), last.1.max(end)),
            _ => self.0.push((first, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_rests_keeps_little_of_its_buffer() {
        let mut worker = Worker::new(Rights::Serve).unwrap();
        for pages in [CHUNK, KEPT] {
            worker.parts(pages).0[..pages].iter_mut().for_each(|page| page.fill(7));
            assert_eq!(worker.can_rest(), pages > KEPT);
            worker.rests();
            assert!(!worker.can_rest());
            let (buffer, _) = worker.parts(0);
            let held = buffer.iter().filter(|page| page[0] == 7).count();
            assert_eq!(held, KEPT, "after {pages} pages");
        }
        worker.parts(CHUNK).0[CHUNK - 1].fill(9);
        assert_eq!(worker.parts(0).0[CHUNK - 1], [9; PAGE_SIZE]);
    }
}
