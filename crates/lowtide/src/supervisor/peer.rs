//! Who is at the other end of a Unix socket, and whether it still is who it was.

use crate::supervisor::ancestry;
use lowtide_config::proc::Status;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What `/proc/PID/status` says of a process's users, groups and capabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights([Option<String>; 4]);

impl Rights {
    /// None: there is no such process.
    pub fn of(pid: u32) -> Option<Rights> {
        let status = Status::of(pid)?;
        Some(Rights(["Uid", "Gid", "CapPrm", "CapEff"].map(|name| status.value(name).map(str::to_owned))))
    }

    /// Whether users and groups are the same.
    pub fn are_of_user_of(&self, other: &Rights) -> bool {
        self.0[..2] == other.0[..2]
    }

    /// Whether this process still lives, so that the number is its own, and has them: it has not become a program with other
    /// rights, whose business is none of whoever it left a connection to.
    pub fn are_still_of(&self, pid: u32, process: &OwnedFd) -> bool {
        Rights::of(pid).as_ref() == Some(self) && ancestry::is_alive(process)
    }

    /// Those of another user.
    #[cfg(test)]
    pub fn of_another(pid: u32) -> Rights {
        let mut rights = Rights::of(pid).unwrap();
        rights.0[0] = Some("77\t77\t77\t77".to_owned());
        rights
    }
}

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
