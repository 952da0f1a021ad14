//! Forks: a child has none of its parent's regions, nor of the memory that lowtide has for them. It may have regions of its
//! own.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use lowtide_core::vm;

use crate::error::Error;
use crate::{instance, registry, server, sigbus};

/// How many forks there are between this process and the first that had regions.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made. By its number as well: the handler of forks runs in no child of `_Fork` or of the
/// bare system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    generation: u32,
    number: u32,
}

impl Process {
    /// This one.
    pub fn this() -> Process {
        Process { generation: GENERATION.load(Ordering::Relaxed), number: std::process::id() }
    }

    /// Whether it is this one.
    pub fn is_this(self) -> bool {
        self == Process::this()
    }

    /// # Errors
    /// [`Error::Forked`]: it is not this one.
    pub fn must_be_this(self) -> Result<(), Error> {
        if self.is_this() { Ok(()) } else { Err(Error::Forked) }
    }
}

/// To be called before anything is mapped, as often as one likes.
///
/// # Errors
/// [`Error::System`]: there is no memory for the handler of forks.
pub fn prepare() -> Result<(), Error> {
    static DONE: OnceLock<Result<(), Error>> = OnceLock::new();
    DONE.get_or_init(|| {
        vm::keep_from_children();
        // SAFETY: the handler does what one may do in a child.
        match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
            0 => Ok(()),
            errno => Err(Error::System { what: "preparing for forks", errno: rustix::io::Errno::from_raw_os_error(errno) }),
        }
    })
    .clone()
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a child has one thread at first, and its parent's regions, groups and instances refuse from now on.
    unsafe {
        vm::forget_in_child();
        registry::forget_in_child();
        instance::forget_in_child();
        sigbus::reset_after_fork();
        server::forget_in_child();
    }
}
