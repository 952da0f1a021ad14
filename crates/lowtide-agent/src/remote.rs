//! Channels to `lowtide run`, which keeps pages of this process on a server: see the device in lowtide-core (`device/remote.rs`).

use core::ffi::CStr;
use core::time::Duration;

use lowtide_core::device::wire::Hello;
use lowtide_pager::sys::broker::address;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::{agent, broker};

/// For so long `lowtide run` may take to say yes to a new device.
const PATIENCE: Duration = Duration::from_secs(10);
/// For so long it may say nothing to a request: much longer than it waits for a server. It may be stopped for a while.
const LONG_PATIENCE: Duration = Duration::from_secs(600);

/// Makes a channel; see [`lowtide_core::device::Opener`].
///
/// # Errors
/// `lowtide run` is not to be reached from here (another network namespace), or what it says: `NOENT`: it knows no such device.
pub fn open(number: u8, hello: Hello) -> Result<OwnedFd, Errno> {
    let settings = agent::settings();
    let area = settings.swap.get(usize::from(number)).ok_or(Errno::NOENT)?.spec();
    let name = CStr::from_bytes_until_nul(&area.file).map_err(|_| Errno::INVAL)?;
    let channel = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // What is there already is needed: that `lowtide run` is stopped for a while is no reason to go on without.
    let patience = if hello.again { LONG_PATIENCE } else { PATIENCE };
    sockopt::set_socket_timeout(&channel, Timeout::Send, Some(patience))?;
    sockopt::set_socket_timeout(&channel, Timeout::Recv, Some(patience))?;
    let address = address(name.to_bytes())?;
    retry_on_intr(|| rustix::net::connect(&channel, &address))?;
    broker::check_peer(channel.as_fd(), settings.supervisor)?;
    retry_on_intr(|| rustix::net::send(&channel, &hello.encode(), SendFlags::NOSIGNAL))?;
    // No objects, and the result.
    let mut answer = [0; 8];
    let (n, _) = retry_on_intr(|| rustix::net::recv(&channel, &mut answer[..], RecvFlags::WAITALL))?;
    let [_, _, _, _, result @ ..] = answer;
    match i32::from_ne_bytes(result) {
        _ if n < answer.len() => Err(Errno::PIPE),
        0 => {
            sockopt::set_socket_timeout(&channel, Timeout::Send, Some(LONG_PATIENCE))?;
            sockopt::set_socket_timeout(&channel, Timeout::Recv, Some(LONG_PATIENCE))?;
            Ok(channel)
        }
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}
