//! What this process gets from `lowtide run` for lack of rights (`lowtide-wire`'s `broker`).

use core::ffi::CStr;

use linux_raw_sys::net as sys;
use lowtide_sys::present::Present;
use lowtide_sys::uffd::{self, Uffd};
use lowtide_wire::broker::{Connection, DEVICE, HANDSHAKE, PAGE_MAP};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Errno;

use crate::process::agent;
use crate::process::thread::syscall6;

/// # Errors
/// `lowtide run` is gone, or in another network namespace.
pub fn connect() -> Result<Connection, Errno> {
    let (name, supervisor) = whom()?;
    connect_to(name, supervisor)
}

/// Does not wait.
///
/// # Errors
/// As [`connect`]; `AGAIN`: many others are connecting.
pub fn connect_at_once() -> Result<Connection, Errno> {
    let (name, supervisor) = whom()?;
    connect_by(Connection::at_once, name, supervisor)
}

fn whom() -> Result<(&'static [u8], u32), Errno> {
    let settings = agent::settings();
    let name = CStr::from_bytes_until_nul(&settings.broker).map_err(|_| Errno::INVAL)?;
    Ok((name.to_bytes(), settings.supervisor))
}

/// The peer must be `supervisor`: after its end others can take the name.
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

/// # Errors
/// `PERM`: the peer is not `supervisor`.
pub fn check_peer(socket: BorrowedFd<'_>, supervisor: u32) -> Result<(), Errno> {
    // Pid, user, group. The pid is 0 for a process outside this pid namespace.
    let (mut peer, mut len) = ([0u32; 3], 12u32);
    // SAFETY: SO_PEERCRED writes at most twelve bytes, as stated.
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

/// A userfaultfd with all features, with `lowtide run`'s help if this process lacks a privilege.
///
/// # Errors
/// Those of the kernel or `lowtide run`.
pub fn userfaultfd() -> Result<Uffd, Errno> {
    let (fd, device) = match uffd::create() {
        Ok(fd) => match uffd::handshake(fd.as_fd(), uffd::NEEDED_FEATURES) {
            Ok(_) => return Uffd::ready(fd).with_probe(None),
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
    Uffd::ready(fd).with_probe(device.as_ref().map(AsFd::as_fd))
}

/// After a change of user a process may not open its own page map.
///
/// # Errors
/// As [`userfaultfd`].
pub fn page_map() -> Result<Present, Errno> {
    match Present::open() {
        Err(Errno::ACCESS | Errno::PERM) => Present::opened(connect()?.ask_file(PAGE_MAP)?),
        other => other,
    }
}
