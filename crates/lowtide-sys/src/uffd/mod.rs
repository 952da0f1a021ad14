//! Typed userfaultfd system calls, without state or locks.

#[cfg(feature = "faults")]
mod faults;
mod ioctl;
mod message;
mod open;
mod pages;
mod probe;
mod register;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;

#[cfg(feature = "faults")]
pub use faults::struck;
pub use ioctl::ioctl;
pub use message::{Access, MOST_READ, Message};
pub use open::{
    FEATURE_MOVE, FEATURE_SIGBUS, NEEDED_FEATURES, NEEDED_WITHOUT_EVENTS, create, create_for_user_mode, create_on, handshake,
};
pub use pages::{Holes, Progress, Wake};
pub use register::{REGISTER, Standing, Watched};

/// Milliseconds until a second userfaultfd reports what the first has: the thread first needs a
/// CPU. After that, handlers look again at each turn.
pub const SECOND_REPORT_MS: i32 = 5;

/// A userfaultfd of this process (or, from a fork event, of a child).
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    /// See [`Uffd::is_registered`].
    probe: Option<OwnedFd>,
}

impl Uffd {
    /// The descriptor, for poll.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Duplicates it to a descriptor of at least `least`.
    pub fn raised(&self, least: RawFd) -> Result<Uffd, Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, least)?;
        let probe = self.probe.as_ref().map(|probe| rustix::io::fcntl_dupfd_cloexec(probe, 0)).transpose()?;
        Ok(Uffd { fd, probe })
    }

    /// The descriptor's number.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
