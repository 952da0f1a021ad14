//! Who is at the other end of a Unix socket.

use crate::supervisor::ancestry;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// An option of a socket. `T`: what the kernel writes for it, for which all bytes are valid.
pub fn option<T: Default>(socket: &OwnedFd, name: libc::c_int) -> Option<T> {
    let (mut value, mut len) = (T::default(), size_of::<T>() as libc::socklen_t);
    // SAFETY: at most as many bytes are written as are said.
    let r = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    (r == 0 && len as usize == size_of::<T>()).then_some(value)
}

/// The user who connected, or who listens. None: can't be known.
pub fn user(socket: &OwnedFd) -> Option<u32> {
    // Pid, user, group. (rustix has this, with a pid that is never 0, and it is 0 if the process can't be seen from here.)
    let [_, user, _]: [u32; 3] = option(socket, libc::SO_PEERCRED)?;
    Some(user)
}

/// A descriptor of the process that connected, and its number, if it is one of the run.
pub fn of_run(socket: &OwnedFd) -> Option<(OwnedFd, u32)> {
    let peer: libc::c_int = option(socket, libc::SO_PEERPIDFD)?;
    // SAFETY: the kernel has just made it for us.
    let peer = unsafe { OwnedFd::from_raw_fd(peer) };
    // Pid, user, group; the pid is 0 if the process can't be seen from here.
    let [pid, ..]: [u32; 3] = option(socket, libc::SO_PEERCRED)?;
    // The number is that of the descriptor's process as long as that lives.
    let is_ours = ancestry::belongs(pid) == Some(true) && ancestry::is_alive(&peer);
    is_ours.then_some((peer, pid))
}
