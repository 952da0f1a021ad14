//! Fork: the child gets a copy-on-write copy of all of lowtide's tables with the rest of its memory, and from then on depends
//! on nobody. What these files take care of is the moment itself:
//!
//! 1. Before (agent, `pthread_atfork`): operations are paused, so that the copied tables are consistent. Faults are still
//!    served, by copying only, and events are held back. A reference is added to each slot of swap files for the child, which
//!    finds in its copy of the store whose they are.
//! 2. The kernel clones the memory and blocks the forking thread until a monitor has read the fork event, which brings the
//!    child's userfaultfd. Only then does the child run; first the C library's own code, then lowtide's handler.
//! 3. From the event on, the monitor does nothing but serve the child's faults from its own tables, until the child says that
//!    its own agent is ready, or its time is over. It holds the exclusive space lock but while it waits. Then it closes the
//!    child's userfaultfd (which unregisters all of the child's memory), says so, and resumes. Only then does fork return in
//!    the parent.
//! 4. The child registers its memory with a userfaultfd of its own and serves itself.
//!
//! A child that has not wanted to run for a second, or gets no CPU for a minute, or says that it will never be ready (no thread
//! can be started there, no file opened), is *whole*: it gets all of its pages at once, and no references. If it comes to
//! itself, what its tables say is out is forgotten.
//!
//! What the two share afterwards may have to be protected (`protect.rs`).
//!
//! A fork that was not announced (a raw system call) is served otherwise: the monitor fills in every page of the child that is
//! in lowtide's hands, at once, and lets it go: right, but it costs RAM. The thread that forks waits for that (`hold.rs`).

mod child;
mod handover;
mod held_back;
mod hold;
mod parent;
mod protect;
mod whole;
mod wiped;

pub use child::{Inheritance, TakenOver};
pub use handover::Handover;
pub(crate) use held_back::{HeldBack, Whose};
pub(crate) use hold::{Hold, SOON_MS};
pub(crate) use protect::SharedWrites;
pub use protect::Sharing;
