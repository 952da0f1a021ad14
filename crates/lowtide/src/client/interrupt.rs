//! Signals, ^C above all, as something to wait for.

use super::failed;
use crate::error::Failure;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::mem::MaybeUninit;

/// The signals that end a command.
pub const ENDS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Signals, held back.
pub struct Interrupt {
    fd: OwnedFd,
}

impl Interrupt {
    /// From now on these wait to be asked for.
    pub fn take(signals: &[i32]) -> Result<Interrupt, Failure> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is initialised first; the other calls read it.
        let fd = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(failed(format!("can't wait for signals ({})", std::io::Error::last_os_error())));
        }
        // SAFETY: signalfd has just made it for us.
        Ok(Interrupt { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// The number of one that has come.
    pub fn next(&self) -> Option<u8> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is as large as said.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        // SAFETY: where the whole was read, the kernel has filled it.
        (n == size as isize).then(|| unsafe { info.assume_init() }.ssi_signo as u8)
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
