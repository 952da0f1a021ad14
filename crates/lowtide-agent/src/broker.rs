//! What this process gets from `lowtide run` because it can't get it by itself: see the pager's `broker`.

use core::ffi::CStr;

use linux_raw_sys::net as sys;
use lowtide_pager::sys::broker::{Connection, DEVICE, HANDSHAKE, PAGE_MAP};
use lowtide_pager::sys::present::Present;
use lowtide_pager::sys::uffd::{self, Uffd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Errno;

use crate::agent;
use crate::thread::syscall6;

/// A connection to the `lowtide run` of this run.
///
/// # Errors
/// It is not there, or not to be reached from here (another network namespace).
pub fn connect() -> Result<Connection, Errno> {
    let (name, supervisor) = whom()?;
    connect_to(name, supervisor)
}

/// The same without waiting.
///
/// # Errors
/// As [`connect`]; `AGAIN`: many others are about to connect.
pub fn connect_at_once() -> Result<Connection, Errno> {
    let (name, supervisor) = whom()?;
    connect_by(Connection::at_once, name, supervisor)
}

/// The name of the socket of `lowtide run`, and its process.
fn whom() -> Result<(&'static [u8], u32), Errno> {
    let settings = agent::settings();
    let name = CStr::from_bytes_until_nul(&settings.broker).map_err(|_| Errno::INVAL)?;
    Ok((name.to_bytes(), settings.supervisor))
}

/// A connection to the socket of this name, which must be the process's `supervisor`: once that has ended, others can take the
/// name.
///
/// # Errors
/// As [`connect`].
pub fn connect_to(name: &[u8], supervisor: u32) -> Result<Connection, Errno> {
    connect_by(Connection::new, name, supervisor)
}

fn connect_by(
    connect: impl FnOnce(&[u8]) -> Result<Connection, Errno>,
    name: &[u8],
    supervisor: u32,
) -> Result<Connection, Errno> {
    if name.is_empty() {
        return Err(Errno::NOTCONN);
    }
    let connection = connect(name)?;
    check_peer(connection.as_fd(), supervisor)?;
    Ok(connection)
}

/// Whether a connected socket leads to the process's `supervisor`.
///
/// # Errors
/// `PERM`: to another process.
pub fn check_peer(socket: BorrowedFd<'_>, supervisor: u32) -> Result<(), Errno> {
    // Pid, user, group. The pid is 0 if the process is in none of this one's pid namespaces.
    let (mut peer, mut len) = ([0u32; 3], 12u32);
    // SAFETY: SO_PEERCRED writes twelve bytes at most, as said.
    let r = unsafe {
        syscall6(
            linux_raw_sys::general::__NR_getsockopt,
            socket.as_raw_fd() as usize,
            sys::SOL_SOCKET as usize,
            sys::SO_PEERCRED as usize,
            peer.as_mut_ptr() as usize,
            &raw mut len as usize,
            0,
        )
    };
    if r < 0 || peer[0] != supervisor { Err(Errno::PERM) } else { Ok(()) }
}

/// A userfaultfd of this process, ready for all that lowtide needs. What takes a privilege that this process has not got,
/// `lowtide run` does for it.
///
/// # Errors
/// What the kernel said to this process, or `lowtide run`.
pub fn userfaultfd() -> Result<Uffd, Errno> {
    let features = agent::settings().features;
    let (fd, device) = match uffd::create() {
        Ok(fd) => match uffd::handshake(fd.as_fd(), features) {
            Ok(_) => return Uffd::ready(fd, features).with_probe(None),
            Err(Errno::PERM) => (fd, None),
            Err(error) => return Err(error),
        },
        Err(Errno::NOSYS) => return Err(Errno::NOSYS),
        Err(_) => {
            let device = connect()?.ask_file(DEVICE)?;
            (uffd::create_on(device.as_fd())?, Some(device))
        }
    };
    connect()?.ask(HANDSHAKE, Some(fd.as_fd()))?;
    Uffd::ready(fd, features).with_probe(device.as_ref().map(AsFd::as_fd))
}

/// The page map of this process. (One that has changed its user may not open its own.)
///
/// # Errors
/// As [`userfaultfd`].
pub fn page_map() -> Result<Present, Errno> {
    match Present::open() {
        Err(Errno::ACCESS | Errno::PERM) => Present::opened(connect()?.ask_file(PAGE_MAP)?),
        other => other,
    }
}
