//! Identifies the process at the other end of a Unix socket.

use crate::supervisor::ancestry;
use lowtide_config::proc::Status;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Users, groups and capabilities from `/proc/PID/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights([Option<String>; 4]);

impl Rights {
    pub fn of(pid: u32) -> Option<Rights> {
        let status = Status::of(pid)?;
        Some(Rights(["Uid", "Gid", "CapPrm", "CapEff"].map(|name| status.value(name).map(str::to_owned))))
    }

    pub fn are_of_user_of(&self, other: &Rights) -> bool {
        self.0[..2] == other.0[..2]
    }

    /// Whether the process lives, so that the number is its own, and still has these rights. A
    /// program with other rights must not be served on an inherited connection.
    pub fn are_still_of(&self, pid: u32, process: &OwnedFd) -> bool {
        Rights::of(pid).as_ref() == Some(self) && ancestry::is_alive(process)
    }

    #[cfg(test)]
    pub fn of_another(pid: u32) -> Rights {
        let mut rights = Rights::of(pid).unwrap();
        rights.0[0] = Some("77\t77\t77\t77".to_owned());
        rights
    }
}

/// A socket option. `T`: a type for which all bytes are valid.
pub fn option<T: Default>(socket: &OwnedFd, name: libc::c_int) -> Option<T> {
    let (mut value, mut len) = (T::default(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes.
    let r = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    (r == 0 && len as usize == size_of::<T>()).then_some(value)
}

/// The user at the other end; None if unknown.
pub fn user(socket: &OwnedFd) -> Option<u32> {
    // Pid, user, group. (rustix's type excludes pid 0, which a process invisible from here has.)
    let [_, user, _]: [u32; 3] = option(socket, libc::SO_PEERCRED)?;
    Some(user)
}

/// The connected process's pidfd and pid, if it belongs to the run.
pub fn of_run(socket: &OwnedFd) -> Option<(OwnedFd, u32)> {
    let peer: libc::c_int = option(socket, libc::SO_PEERPIDFD)?;
    // SAFETY: the kernel has just made it for this process.
    let peer = unsafe { OwnedFd::from_raw_fd(peer) };
    // Pid, user, group; pid 0 if the process is invisible from here.
    let [pid, ..]: [u32; 3] = option(socket, libc::SO_PEERCRED)?;
    // The pid names the pidfd's process as long as that lives.
    let is_ours = ancestry::belongs(pid) == Some(true) && ancestry::is_alive(&peer);
    is_ours.then_some((peer, pid))
}
