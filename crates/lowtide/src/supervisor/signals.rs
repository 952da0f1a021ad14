//! Signals: which the supervisor passes on to the program, and how the program gets back the world that lowtide was started in.

use crate::error::Failure;
use crate::signal_fd::{SignalFd, SignalSet};
use rustix::process::Signal;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGPIPE was ignored when lowtide was started. Rust's runtime ignores it before `main`, so this is asked earlier.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_sigpipe() {
    PIPE_IGNORED.store(disposition(libc::SIGPIPE) == libc::SIG_IGN, Ordering::Relaxed);
}

#[used]
// SAFETY: .init_array holds functions of this type; this one needs nothing that is initialised later.
#[unsafe(link_section = ".init_array")]
static NOTE_SIGPIPE: extern "C" fn() = note_sigpipe;

/// Signals that stay lowtide's own: those that can't be blocked, and those that say that lowtide itself is broken.
const OWN: [Signal; 10] = [
    Signal::KILL,
    Signal::STOP,
    Signal::SEGV,
    Signal::BUS,
    Signal::FPE,
    Signal::ILL,
    Signal::TRAP,
    Signal::ABORT,
    Signal::SYS,
    Signal::PIPE,
];

/// What the program inherits in place of the supervisor's settings.
#[derive(Clone, Copy)]
pub struct Inherited {
    mask: SignalSet,
    pipe: libc::sighandler_t,
    child: libc::sighandler_t,
}

impl Inherited {
    /// Puts all back; called in the new process between fork and exec.
    pub fn restore(&self) {
        // SAFETY: async-signal-safe calls with valid arguments; `pipe` and `child` are SIG_DFL or SIG_IGN.
        unsafe {
            libc::signal(libc::SIGPIPE, self.pipe);
            libc::signal(libc::SIGCHLD, self.child);
        }
        self.mask.set_mask();
    }

    /// The signals that the program is to have blocked.
    pub fn mask(&self) -> &SignalSet {
        &self.mask
    }
}

/// Takes all signals that are passed on, and SIGCHLD, off their normal way. Call it before there are other threads.
pub fn take() -> Result<(SignalFd, Inherited), Failure> {
    let child = disposition(libc::SIGCHLD);
    let pipe = if PIPE_IGNORED.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL };
    // With SIGCHLD ignored the kernel would throw the exit status away.
    // SAFETY: SIG_DFL is no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let (signals, mask) = SignalFd::new(&SignalSet::all_but(&OWN))
        .map_err(|error| Failure::failed(format!("can't wait for signals ({error})")))?;
    Ok((signals, Inherited { mask, pipe, child }))
}

fn disposition(signal: libc::c_int) -> libc::sighandler_t {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; zeroes are a valid sigaction.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction
    }
}
