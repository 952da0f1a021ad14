//! What the pager asks of the process it lives in.

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::mappings::regions::Range;
use crate::sys::present::Present;
use crate::sys::uffd::Uffd;

/// What the pager asks of the process it lives in.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// The program can't go on: end the run with this message.
    pub fatal: fn(&[u8]) -> !,
    /// A page can't be had, says the message. Where this returns, the thread that touched it is to be told
    /// ([`crate::fault::Served::Lost`]).
    pub lost: fn(&[u8]),
    /// Tell the user once.
    pub warn: fn(&[u8]),
    /// The calling monitor is about to wait: until its turn is over others are to look after the program's faults.
    pub waits: fn(),
    /// A new userfaultfd of this process, ready for [`crate::sys::uffd::NEEDED_FEATURES`] and for what else the first one was.
    pub open_uffd: fn() -> Result<Uffd, Errno>,
    /// The page map of this process.
    pub open_page_map: fn() -> Result<Present, Errno>,
    /// Opens the bytes of this process (`/proc/self/mem`) for reading. None: zeros are not searched for (`zeros.rs`).
    pub open_memory: fn() -> Option<OwnedFd>,
    /// Whether the calling thread, which keeps to memory ([`crate::fault::Reach::Memory`]), has the page map under the number by
    /// which lowtide knows it: a program may have closed it, and have something else there.
    pub has_page_map: fn() -> bool,
    /// Steps of eviction for one fault at most: one where others evict as well, and a fault need not wait for all the room that
    /// it takes.
    pub steps: usize,
    /// Where the one thread changes memory that has the turn to map, unmap or move; see `mappings/event_order.rs`.
    pub turn: fn() -> [Range; 2],
    /// Whether the program has one thread only.
    pub is_alone: fn() -> bool,
    /// Whether the child that is being forked wants to run: it is not ready because it gets no CPU.
    pub child_wants_to_run: fn() -> bool,
    /// Whether this process has a thread of this id.
    pub has_thread: fn(u32) -> bool,
    /// Whether no thread of the program is in a call that changes mappings any more that was when this was asked. May take a tenth
    /// of a second.
    pub changes_are_over: fn() -> bool,
    /// Calls this so that no signal handler runs in the middle.
    pub undisturbed: fn(&mut dyn FnMut()),
}
