//! Takes the signals that the supervisor passes on, and restores the program's original signal
//! setup.

use crate::error::Failure;
use crate::signal_fd::{SignalFd, SignalSet};
use rustix::process::Signal;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGPIPE was ignored at the start. Rust's runtime ignores it before `main`, so
/// .init_array reads it.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_sigpipe() {
    PIPE_IGNORED.store(disposition(libc::SIGPIPE) == libc::SIG_IGN, Ordering::Relaxed);
}

#[used]
// SAFETY: .init_array holds functions of this type; this one needs nothing that is initialised
// later.
#[unsafe(link_section = ".init_array")]
static NOTE_SIGPIPE: extern "C" fn() = note_sigpipe;

/// Signals that lowtide keeps: unblockable ones, and those of its own crashes.
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

/// The program's signal setup, in place of the supervisor's.
#[derive(Clone, Copy)]
pub struct Inherited {
    mask: SignalSet,
    pipe: libc::sighandler_t,
    child: libc::sighandler_t,
}

impl Inherited {
    /// Restores the setup; called in the new process between fork and exec.
    pub fn restore(&self) {
        // SAFETY: async-signal-safe calls with valid arguments; `pipe` and `child` are SIG_DFL or
        // SIG_IGN.
        unsafe {
            libc::signal(libc::SIGPIPE, self.pipe);
            libc::signal(libc::SIGCHLD, self.child);
        }
        self.mask.set_mask();
    }

    pub fn mask(&self) -> &SignalSet {
        &self.mask
    }
}

/// Redirects all signals to pass on, and SIGCHLD, to a signalfd. Call it before other threads
/// exist.
pub fn take() -> Result<(SignalFd, Inherited), Failure> {
    let child = disposition(libc::SIGCHLD);
    let pipe = if PIPE_IGNORED.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL };
    // With SIGCHLD ignored the kernel would discard the exit status. SAFETY: SIG_DFL is no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let (signals, mask) = SignalFd::new(&SignalSet::all_but(&OWN))
        .map_err(|error| Failure::failed(format!("can't wait for signals ({error})")))?;
    Ok((signals, Inherited { mask, pipe, child }))
}

fn disposition(signal: libc::c_int) -> libc::sighandler_t {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads the action; zeroes are a valid sigaction.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction
    }
}
