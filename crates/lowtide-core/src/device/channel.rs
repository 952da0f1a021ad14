//! Connects a process to `lowtide run`'s threads for pages on a server (`wire.rs` has the
//! protocol), over an abstract Unix socket.
//!
//! Without allocation and locks: a channel may be made during a fault.

use core::time::Duration;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::wire::Hello;

/// Longest wait for a new device.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait otherwise: much longer than `lowtide run` waits for a server, because it may be
/// stopped.
const LONG_PATIENCE: Duration = Duration::from_secs(600);

/// Connects to the socket of this name, and names the device. `check` verifies the peer.
///
/// # Errors
/// No listener (or another network namespace); those of `check`; the answer's: `NOENT`: no such
/// device.
pub fn connect(name: &[u8], hello: Hello, check: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>) -> Result<OwnedFd, Errno> {
    let channel = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let wait_for = |patience| {
        sockopt::set_socket_timeout(&channel, Timeout::Send, Some(patience))?;
        sockopt::set_socket_timeout(&channel, Timeout::Recv, Some(patience))
    };
    // Existing pages are worth waiting for a stopped `lowtide run`.
    wait_for(if hello.again { LONG_PATIENCE } else { PATIENCE })?;
    let address = SocketAddrUnix::new_abstract_name(name)?;
    retry_on_intr(|| rustix::net::connect(&channel, &address))?;
    check(channel.as_fd())?;
    retry_on_intr(|| rustix::net::send(&channel, &hello.encode(), SendFlags::NOSIGNAL))?;
    // No objects, and the result.
    let mut answer = [0; 8];
    let (n, _) = retry_on_intr(|| rustix::net::recv(&channel, &mut answer[..], RecvFlags::WAITALL))?;
    let [_, _, _, _, result @ ..] = answer;
    match i32::from_ne_bytes(result) {
        _ if n < answer.len() => Err(Errno::PIPE),
        0 => {
            wait_for(LONG_PATIENCE)?;
            Ok(channel)
        }
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}
