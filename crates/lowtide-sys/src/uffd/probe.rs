//! A second userfaultfd without registrations. It awaits no events, so it answers even between the
//! read of an event and its call's end, when the first says EAGAIN.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::sched_yield;

use super::open::{create_for_user_mode, create_on, handshake};
use super::register::standing;
use super::{Standing, Uffd};

const TRIES: u32 = 1000;

/// `device`: an open `/dev/userfaultfd`, if needed.
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
    /// Adds a probe, on an open `/dev/userfaultfd` if given.
    ///
    /// # Errors
    /// Those of making a userfaultfd.
    pub fn with_probe(self, device: Option<BorrowedFd<'_>>) -> Result<Uffd, Errno> {
        Ok(Uffd { probe: Some(open(device)?), ..self })
    }

    /// Whether private memory is registered, in tenths of a microsecond. Without a probe only for
    /// memory without events.
    pub fn is_registered(&self, addr: usize) -> bool {
        let asked = self.probe.as_ref().map_or(self.as_fd(), |probe| probe.as_fd());
        for _ in 0..TRIES {
            match standing(asked, addr) {
                // The kernel lacks memory.
                Standing::Changing => sched_yield(),
                known => return known == Standing::Registered,
            }
        }
        // Assume no change.
        true
    }
}
