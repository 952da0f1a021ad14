//! How a process makes a channel to the threads that keep its pages on a server (`wire.rs` has what is said there). They listen on
//! a socket without a place in the file system.
//!
//! Nothing here allocates or takes a lock: a channel may be made while a fault is served.

use core::time::Duration;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::wire::Hello;

/// For so long they may take to say yes to a new device.
const PATIENCE: Duration = Duration::from_secs(10);
/// For so long they may say nothing to a request: much longer than they wait for a server. `lowtide run` may be stopped for a
/// while.
const LONG_PATIENCE: Duration = Duration::from_secs(600);

/// Connects to the socket of this name, and says whose pages it is about. `check`: whether the other end is who it should be.
///
/// # Errors
/// Nobody listens (or it is another network namespace); those of `check`; what was answered: `NOENT`: there is no such device.
pub fn connect(name: &[u8], hello: Hello, check: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>) -> Result<OwnedFd, Errno> {
    let channel = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let wait_for = |patience| {
        sockopt::set_socket_timeout(&channel, Timeout::Send, Some(patience))?;
        sockopt::set_socket_timeout(&channel, Timeout::Recv, Some(patience))
    };
    // What is there already is needed: that `lowtide run` is stopped for a while is no reason to go on without.
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
