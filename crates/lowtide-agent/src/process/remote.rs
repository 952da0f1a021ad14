//! Channels to `lowtide run`, which keeps pages on a server (`device/remote.rs` in lowtide-core).

use core::ffi::CStr;

use lowtide_core::device::channel;
use lowtide_core::device::wire::Hello;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::process::{agent, broker};

/// See [`lowtide_core::device::Opener`].
///
/// # Errors
/// `lowtide run` is unreachable (another network namespace), or its answer; `NOENT`: no such
/// device.
pub fn open(number: u8, hello: Hello) -> Result<OwnedFd, Errno> {
    let settings = agent::settings();
    let area = settings.swap.get(usize::from(number)).ok_or(Errno::NOENT)?.spec();
    let name = CStr::from_bytes_until_nul(&area.file).map_err(|_| Errno::INVAL)?;
    channel::connect(name.to_bytes(), hello, |peer| broker::check_peer(peer, settings.supervisor))
}
