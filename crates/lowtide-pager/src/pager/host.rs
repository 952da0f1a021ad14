//! The process around the pager.

use lowtide_sys::Range;
use lowtide_sys::present::Present;
use lowtide_sys::uffd::Uffd;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::mappings::Changes;

/// Services of that process.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// Ends the run with this message.
    pub fatal: fn(&[u8]) -> !,
    /// Reports a lost page. If it returns, tell the thread ([`crate::fault::Served::Lost`]).
    pub lost: fn(&[u8]),
    /// Warns the user once.
    pub warn: fn(&[u8]),
    /// The calling handler will wait: others take over its faults.
    pub waits: fn(),
    /// Opens a userfaultfd with [`lowtide_sys::uffd::NEEDED_FEATURES`].
    pub open_uffd: fn() -> Result<Uffd, Errno>,
    /// Opens the page map.
    pub open_page_map: fn() -> Result<Present, Errno>,
    /// Opens `/proc/self/mem`. None: zeros are not sought.
    pub open_memory: fn() -> Option<OwnedFd>,
    /// Whether a thread of [`Rights::Memory`](crate::pages::Rights) still finds the page map at its
    /// number, which programs may reuse.
    pub has_page_map: fn() -> bool,
    /// Eviction steps per fault: one if others evict too.
    pub steps: usize,
    /// What the thread with the turn changes (`mappings/event_order.rs`).
    pub turn: fn() -> Changes,
    /// Whether the program is single-threaded.
    pub is_alone: fn() -> bool,
    /// Whether one of the last hooked calls that have enlarged a mapping in place covers some of
    /// this.
    pub may_have_grown: fn(Range) -> bool,
    /// Whether the child being forked waits for a CPU only.
    pub child_wants_to_run: fn() -> bool,
    /// Whether this process has a thread of this id.
    pub has_thread: fn(u32) -> bool,
    /// Whether calls that changed mappings when asked are over. Up to a tenth of a second.
    pub changes_are_over: fn() -> bool,
    /// Calls with signal handlers blocked.
    pub undisturbed: fn(&mut dyn FnMut()),
}
