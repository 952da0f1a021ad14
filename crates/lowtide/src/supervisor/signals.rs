//! Signals: which the supervisor passes on to the program, and how the program gets back the world that lowtide was started in.

use crate::error::Failure;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
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

/// Signals that are not passed on: those that can't be, those that say that lowtide itself is broken, and SIGCHLD.
const OWN: [libc::c_int; 11] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGCHLD,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
    libc::SIGPIPE,
];

/// What the program inherits in place of the supervisor's settings.
#[derive(Clone, Copy)]
pub struct Inherited {
    mask: libc::sigset_t,
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
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut());
        }
    }
}

/// A signal that came.
pub struct Signal {
    /// Its number.
    pub number: libc::c_int,
    /// Sent by the kernel, as the terminal's ^C is: the program's process group, which is ours, has got it already.
    pub from_kernel: bool,
}

/// The supervisor's signals, as a descriptor to wait for.
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Takes all signals that are passed on, and SIGCHLD, off their normal way. Call it before there are other threads.
    pub fn take() -> Result<(Signals, Inherited), Failure> {
        let child = disposition(libc::SIGCHLD);
        let pipe = if PIPE_IGNORED.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL };
        let mut old = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: plain calls with valid arguments; the sets are filled in by the calls.
        let (fd, mask) = unsafe {
            // With SIGCHLD ignored the kernel would throw the exit status away.
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
            libc::sigfillset(set.as_mut_ptr());
            for signal in OWN {
                libc::sigdelset(set.as_mut_ptr(), signal);
            }
            libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), old.as_mut_ptr());
            (libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK), old.assume_init())
        };
        if fd < 0 {
            return Err(Failure::failed(format!("can't wait for signals ({})", std::io::Error::last_os_error())));
        }
        // SAFETY: signalfd has just made it for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok((Signals { fd }, Inherited { mask, pipe, child }))
    }

    /// The next signal that has come, if any.
    pub fn next(&self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is as large as said.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if n != size as isize {
            return None;
        }
        // SAFETY: the kernel has filled it.
        let info = unsafe { info.assume_init() };
        Some(Signal { number: info.ssi_signo as libc::c_int, from_kernel: info.ssi_code == SI_KERNEL })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `si_code` of a signal that the kernel made.
const SI_KERNEL: i32 = 0x80;

fn disposition(signal: libc::c_int) -> libc::sighandler_t {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; zeroes are a valid sigaction.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction
    }
}
