//! Fork. The child gets a copy-on-write copy of lowtide's tables with the rest of its memory. These
//! files handle the fork itself:
//!
//! 1. Before (agent, `pthread_atfork`): operations are paused, so that the copied tables are
//!    consistent; faults are served by copying, and events are held back. The child gets a
//!    reference to each slot of swap files.
//! 2. The kernel clones the memory and blocks the forking thread until a handler has read the fork
//!    event, which brings the child's userfaultfd. Then the child runs the C library's own code,
//!    and lowtide's handler.
//! 3. The handler serves only the child's faults, from its own tables, until the child's agent is
//!    ready or its time is over. It holds the exclusive space lock except while it waits. Then it
//!    closes the child's userfaultfd (which unregisters the child's memory), tells the child, and
//!    resumes. Then fork returns in the parent.
//! 4. The child registers its memory with a userfaultfd of its own and serves itself.
//!
//! A child that has not wanted to run for a second, gets no CPU for a minute, or can never be ready
//! is *whole*: it gets all of its pages at once, and no references, and forgets what its tables
//! list as out. A child of an unannounced fork (a raw system call) gets all pages, too; the thread
//! waits for that (`hold.rs`).

mod child;
mod handover;
mod held_back;
mod hold;
mod parent;
mod paused;
mod whole;
mod wiped;

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize};

use rustix::io::Errno;

pub use child::{Inheritance, TakenOver};
pub use handover::Handover;
pub(crate) use held_back::{HeldBack, Whose};
pub(crate) use hold::Hold;

/// The fork under way, and the effects of earlier ones.
pub(crate) struct Forks {
    pub(crate) handover: AtomicPtr<Handover>,
    pub(crate) held_back: HeldBack,
    pub(crate) hold: Hold,
    pub(crate) forking: AtomicBool,
    pub(crate) was_forked: AtomicBool,
    /// See [`crate::pager::Pager::moves_during_fork`].
    pub(crate) has_moved: AtomicBool,
    /// Wraps.
    pub(crate) unannounced: AtomicU32,
    /// Pages brought in for children that no measurement shows yet.
    pub(crate) unborn: AtomicUsize,
    /// There may be stale words.
    pub(crate) has_copied: AtomicBool,
    /// See [`crate::pager::Pager::set_sharers`].
    pub(crate) sharers: AtomicU32,
}

impl Forks {
    pub(crate) fn new() -> Result<Forks, Errno> {
        Ok(Forks {
            handover: AtomicPtr::new(Handover::new()?),
            held_back: HeldBack::new()?,
            hold: Hold::default(),
            forking: AtomicBool::new(false),
            was_forked: AtomicBool::new(false),
            has_moved: AtomicBool::new(false),
            unannounced: AtomicU32::new(0),
            unborn: AtomicUsize::new(0),
            has_copied: AtomicBool::new(false),
            sharers: AtomicU32::new(0),
        })
    }
}
