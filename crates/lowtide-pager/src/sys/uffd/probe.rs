//! A second userfaultfd with which nothing is registered. The kernel asks of no event of the first before it answers, so it says
//! at any time what is registered: also between the read of an event and the end of the call that caused it, when the first
//! answers EAGAIN.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::sched_yield;

use super::open::{create_for_user_mode, create_on, handshake};
use super::register::standing;
use super::{Standing, Uffd};

/// How often the kernel is asked that gives no answer.
const TRIES: u32 = 1000;

/// Makes one. `device`: an open `/dev/userfaultfd`, where this process may not open it.
///
/// # Errors
/// Those of making a userfaultfd.
fn open(device: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
    let by_own_device = |error| {
        let device = rustix::fs::open(c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        create_on(device.map_err(|_| error)?.as_fd())
    };
    let probe = device.map_or_else(|| create_for_user_mode().or_else(by_own_device), create_on)?;
    handshake(probe.as_fd(), 0)?;
    Ok(probe)
}

impl Uffd {
    /// The same with a probe. `device`: as for one that is made.
    ///
    /// # Errors
    /// Those of making a userfaultfd.
    pub fn with_probe(self, device: Option<BorrowedFd<'_>>) -> Result<Uffd, Errno> {
        Ok(Uffd { probe: Some(open(device)?), ..self })
    }

    /// Whether private memory at `addr` is registered, with any userfaultfd; asked of the kernel, which answers in some tenths of a
    /// microsecond. Without a probe it is for memory that no event is asked for of.
    pub fn is_registered(&self, addr: usize) -> bool {
        let asked = self.probe.as_ref().map_or(self.as_fd(), |probe| probe.as_fd());
        for _ in 0..TRIES {
            match standing(asked, addr) {
                // Of a probe that is no answer: the kernel has no memory for its own.
                Standing::Changing => sched_yield(),
                known => return known == Standing::Registered,
            }
        }
        // As if nothing had changed.
        true
    }
}
