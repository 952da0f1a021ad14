//! A forked child has none of its parent's regions, nor lowtide's memory for them. It may make its
//! own.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use lowtide_core::vm;

use crate::error::Error;
use crate::{instance, registry, server, sigbus};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The pid covers children of `_Fork` or the bare system call, where no fork handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    generation: u32,
    number: u32,
}

impl Process {
    pub fn this() -> Process {
        Process { generation: GENERATION.load(Ordering::Relaxed), number: std::process::id() }
    }

    pub fn is_this(self) -> bool {
        self == Process::this()
    }

    /// # Errors
    /// [`Error::Forked`]: another process.
    pub fn must_be_this(self) -> Result<(), Error> {
        if self.is_this() { Ok(()) } else { Err(Error::Forked) }
    }
}

/// Before anything is mapped.
///
/// # Errors
/// [`Error::System`]: no memory for the fork handler.
pub fn prepare() -> Result<(), Error> {
    static DONE: OnceLock<Result<(), Error>> = OnceLock::new();
    DONE.get_or_init(|| {
        vm::keep_from_children();
        // SAFETY: the handler does only what a child may do.
        match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
            0 => Ok(()),
            errno => Err(Error::System { what: "preparing for forks", errno: rustix::io::Errno::from_raw_os_error(errno) }),
        }
    })
    .clone()
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a new child has one thread, and its parent's regions, groups and instances refuse
    // from now on.
    unsafe {
        vm::forget_in_child();
        registry::forget_in_child();
        instance::forget_in_child();
        sigbus::reset_after_fork();
        server::forget_in_child();
    }
}
