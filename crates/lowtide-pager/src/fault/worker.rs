//! The private means of one thread that serves or evicts: its buffers, and which threads of the program wait for it.

use arrayvec::ArrayVec;
use lowtide_core::store::{Page, Scratch};
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use rustix::io::Errno;

use crate::pagemap::Claimant;
use crate::pagemap::ids::PageNo;
use crate::segment::FaultKind;
use crate::sys::uffd::{Access, MOST_READ, Uffd};

/// Pages that are loaded and installed at a time: bounds a worker's buffer and how long the space lock is shared.
pub const CHUNK: usize = 64;
/// Pages of the buffer that a worker keeps while nobody needs it: more than most faults bring in.
const KEPT: usize = 8;

/// A thread of the program waits for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Where: the beginning of the page.
    pub addr: usize,
    /// The thread's id.
    pub thread: u32,
    /// What it wants there.
    pub access: Access,
}

/// What a worker's thread may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All that lowtide has.
    Everything,
    /// Memory, and the userfaultfd and the page map: no device. A thread of the program has other descriptors by the numbers of
    /// lowtide's.
    Memory,
}

/// See above.
pub struct Worker {
    scratch: Scratch,
    buffer: Mapping,
    /// Pages of it that may have memory.
    used: usize,
    /// Whether this thread may wait for pages (the reclaimer may; a monitor, which serves them, must not).
    pub may_fault: bool,
    reach: Reach,
    number: usize,
    waiters: Waiters,
    /// Faults that were read and are not served yet, the next one last.
    in_hand: ArrayVec<Fault, MOST_READ>,
    /// In the words of pages that it brings in.
    pub(crate) claimant: Claimant,
    /// See [`Worker::has_waited`].
    waited: bool,
    /// The kind of the fault that it served last.
    pub(crate) counted: Option<FaultKind>,
}

impl Worker {
    /// Buffers for one thread.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new(may_fault: bool) -> Result<Worker, Errno> {
        Ok(Worker {
            scratch: Scratch::new().map_err(|_| Errno::NOMEM)?,
            buffer: vm::map(CHUNK * PAGE_SIZE, OnFork::Copy)?,
            used: 0,
            may_fault,
            reach: Reach::Everything,
            number: 0,
            waiters: Waiters::default(),
            in_hand: ArrayVec::new(),
            claimant: Claimant::new(),
            waited: false,
            counted: None,
        })
    }

    /// It keeps to this from now on.
    #[must_use]
    pub fn within(mut self, reach: Reach) -> Worker {
        self.reach = reach;
        self.scratch.keep_to_memory(reach == Reach::Memory);
        self
    }

    /// It is the one with this number of several from which threads take one.
    #[must_use]
    pub(crate) fn numbered(mut self, number: usize) -> Worker {
        self.number = number;
        self
    }

    /// See [`Worker::numbered`].
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// What its thread may use.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// These faults were read, and are for nobody else to serve now.
    pub(crate) fn take_in_hand(&mut self, faults: &[Fault]) {
        self.in_hand.extend(faults.iter().rev().copied());
        self.waited = false;
    }

    /// The next of them.
    pub(crate) fn next_in_hand(&mut self) -> Option<Fault> {
        self.in_hand.pop()
    }

    /// Whether other threads of the program wait for this one than that whose fault it serves.
    pub(crate) fn keeps_others(&self) -> bool {
        !self.in_hand.is_empty() || !self.waiters.0.is_empty()
    }

    /// Whether it [was about to wait](Worker::is_about_to_wait) since it took faults in hand.
    pub(crate) fn has_waited(&self) -> bool {
        self.waited
    }

    /// See [`Waiters::installed`].
    pub(crate) fn installed(&mut self, first: PageNo, end: PageNo) {
        self.waiters.installed(first, end);
    }

    /// Lets the threads run on that wait for the pages that this worker has installed since the last call. The last thing that
    /// is done for a fault, by a thread that holds no lock and is in no operation: the program may run in place of this thread
    /// from here on.
    pub fn wake(&mut self, uffd: &Uffd) {
        for (first, end) in self.waiters.0.take() {
            uffd.wake(first.addr(), (end - first) * PAGE_SIZE);
        }
    }

    /// Nobody waits for the pages that were installed: the thread that needs them is this one.
    pub fn forget_waiters(&mut self) {
        self.waiters.0.clear();
    }

    /// This thread is about to do what takes long, for the fault that it serves: threads whose pages have come run on, and
    /// faults that it has in hand go back to the kernel (their threads fault again), which tells other monitors of them.
    /// Without the space lock; in an operation it only makes a fork wait.
    pub(crate) fn is_about_to_wait(&mut self, uffd: &Uffd) {
        self.waited = true;
        self.wake(uffd);
        for Fault { addr, .. } in self.in_hand.drain(..) {
            uffd.wake(addr, PAGE_SIZE);
        }
    }

    /// Gives back what only compressing with zstd needs, until a page is compressed again.
    pub(crate) fn forget_compressor(&mut self) -> bool {
        self.scratch.forget_compressor()
    }

    /// Whether it has anything to give back while it [rests](Worker::rests).
    pub(crate) fn can_rest(&self) -> bool {
        self.used > KEPT || self.scratch.has_compressor()
    }

    /// It has nothing to do for a while: most of the memory of its buffer goes back, and zstd's compressor. (Many processes with
    /// a worker on each CPU would have more of that than of anything.)
    pub(crate) fn rests(&mut self) {
        self.forget_compressor();
        if self.used > KEPT {
            // SAFETY: `&mut self`: nobody has a reference into the buffer.
            unsafe { self.buffer.discard(KEPT * PAGE_SIZE, (self.used - KEPT) * PAGE_SIZE) }
            self.used = KEPT;
        }
    }

    /// Nobody is expected to need it soon: all of its memory goes back that can.
    pub(crate) fn gives_all_back(&mut self) {
        self.scratch.forget_contexts();
        // SAFETY: as in `rests`.
        unsafe { self.buffer.discard(0, self.used * PAGE_SIZE) }
        self.used = 0;
    }

    /// The codec's buffers.
    pub(crate) fn scratch(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    /// The page buffer, of which `pages` are needed from the first on, and the codec's buffers.
    pub(crate) fn parts(&mut self, pages: usize) -> (&mut [Page; CHUNK], &mut Scratch) {
        self.used = self.used.max(pages);
        // SAFETY: the mapping has CHUNK pages, any bytes are a valid Page, and `&mut self` makes the reference unique.
        (unsafe { &mut *self.buffer.as_ptr().cast() }, &mut self.scratch)
    }

    /// The page buffer, and the threads that wait for pages that were installed from it.
    pub(crate) fn buffer_and_waiters(&mut self) -> (&[Page; CHUNK], &mut Waiters) {
        // SAFETY: as in `parts`.
        (unsafe { &*self.buffer.as_ptr().cast() }, &mut self.waiters)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: the references that were given away borrowed this.
        unsafe { self.buffer.retire() }
    }
}

/// Runs of pages that were installed, from the first to behind the last, and whose waiting threads nobody has woken yet.
#[derive(Default)]
pub(crate) struct Waiters(ArrayVec<(PageNo, PageNo), MOST_READ>);

impl Waiters {
    /// The pages `first .. end` are in memory now, and whoever waits for them is still to be woken.
    pub(crate) fn installed(&mut self, first: PageNo, end: PageNo) {
        if first >= end {
            return;
        }
        let is_full = self.0.is_full();
        match self.0.last_mut() {
            // Where they don't meet: a thread that waits for a page in between, which has not come, faults again.
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
        let mut worker = Worker::new(false).unwrap();
        for pages in [CHUNK, KEPT] {
            worker.parts(pages).0[..pages].iter_mut().for_each(|page| page.fill(7));
            assert_eq!(worker.can_rest(), pages > KEPT);
            worker.rests();
            assert!(!worker.can_rest());
            let (buffer, _) = worker.parts(0);
            // What went back reads as zero.
            let held = buffer.iter().filter(|page| page[0] == 7).count();
            assert_eq!(held, KEPT, "after {pages} pages");
        }
        worker.parts(CHUNK).0[CHUNK - 1].fill(9);
        assert_eq!(worker.parts(0).0[CHUNK - 1], [9; PAGE_SIZE]);
    }
}
