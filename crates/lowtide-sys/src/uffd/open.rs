//! Creates userfaultfds and requests features.

use core::ffi::c_void;

use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl::UFFDIO_API;
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use rustix::mm::UserfaultfdFlags;

use super::Uffd;
use super::ioctl::ioctl;

const NEW: Opcode = opcode::none(sys::USERFAULTFD_IOC as u8, 0);

/// Required: events, and UFFDIO_MOVE (Linux 6.8).
pub const NEEDED_FEATURES: u64 = sys::UFFD_FEATURE_EVENT_FORK as u64
    | sys::UFFD_FEATURE_EVENT_REMAP as u64
    | sys::UFFD_FEATURE_EVENT_REMOVE as u64
    | sys::UFFD_FEATURE_EVENT_UNMAP as u64
    | sys::UFFD_FEATURE_THREAD_ID as u64
    | FEATURE_MOVE;

/// UFFD_FEATURE_MOVE.
pub const FEATURE_MOVE: u64 = sys::UFFD_FEATURE_MOVE as u64;

/// For the library's pager, which needs no events.
pub const NEEDED_WITHOUT_EVENTS: u64 = FEATURE_MOVE;
/// SIGBUS instead of messages.
pub const FEATURE_SIGBUS: u64 = sys::UFFD_FEATURE_SIGBUS as u64;

/// Creates one, non-blocking, in full mode, by system call or `/dev/userfaultfd`.
///
/// # Errors
/// Those of the system call; `PERM`: neither is allowed.
pub fn create() -> Result<OwnedFd, Errno> {
    // SAFETY: no effect until memory is registered.
    let by_call = unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) };
    by_call.or_else(|error| {
        let device = rustix::fs::open(c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        create_on(device.map_err(|_| error)?.as_fd())
    })
}

/// Creates one for user-mode faults, without privilege: system calls on missing pages fail with
/// EFAULT.
///
/// # Errors
/// `NOSYS`: no userfaultfd. `INVAL`: before Linux 5.11. `PERM`: a seccomp filter.
pub fn create_for_user_mode() -> Result<OwnedFd, Errno> {
    let flags =
        UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | UserfaultfdFlags::from_bits_retain(sys::UFFD_USER_MODE_ONLY);
    // SAFETY: no effect until memory is registered.
    unsafe { rustix::mm::userfaultfd(flags) }
}

/// Creates one by an open `/dev/userfaultfd`, without privilege.
///
/// # Errors
/// `NOTTY`: another file.
pub fn create_on(device: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: takes flags by value, not a pointer.
    let fd = unsafe { rustix::ioctl::ioctl(device, NewByDevice)? };
    // SAFETY: a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Requests `features`, for another process too: the kernel checks the caller's privilege for fork
/// events. Returns known features.
///
/// # Errors
/// `PERM`: no privilege. `INVAL`: a feature is missing.
pub fn handshake(uffd: BorrowedFd<'_>, features: u64) -> Result<u64, Errno> {
    let mut api = sys::uffdio_api { api: sys::UFFD_API as u64, features, ioctls: 0 };
    // SAFETY: UFFDIO_API takes a uffdio_api.
    unsafe { ioctl(uffd, UFFDIO_API, &mut api)? };
    Ok(api.features)
}

impl Uffd {
    /// Opens one in full mode (kernel accesses wait too).
    ///
    /// # Errors
    /// `PERM` or `ACCESS`: no privilege. `INVAL`: a feature is missing. `NOSYS`: no userfaultfd.
    pub fn open(features: u64) -> Result<Uffd, Errno> {
        let fd = create()?;
        handshake(fd.as_fd(), features)?;
        let uffd = Uffd::ready(fd);
        if features & NEEDED_FEATURES & !NEEDED_WITHOUT_EVENTS != 0 { uffd.with_probe(None) } else { Ok(uffd) }
    }

    /// Opens one for user-mode faults: see [`create_for_user_mode`].
    ///
    /// # Errors
    /// As there; `INVAL`: a feature is missing.
    pub fn open_for_user_mode(features: u64) -> Result<Uffd, Errno> {
        let fd = create_for_user_mode()?;
        handshake(fd.as_fd(), features)?;
        Ok(Uffd::ready(fd))
    }

    /// Wraps one whose features were requested.
    pub fn ready(fd: OwnedFd) -> Uffd {
        Uffd { fd, probe: None }
    }
}

struct NewByDevice;

// SAFETY: takes flags by value, returns a descriptor, touches no memory.
unsafe impl Ioctl for NewByDevice {
    type Output = RawFd;
    const IS_MUTATING: bool = false;
    fn opcode(&self) -> Opcode {
        NEW
    }
    fn as_ptr(&mut self) -> *mut c_void {
        (UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK).bits() as usize as *mut c_void
    }
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<RawFd, Errno> {
        Ok(out)
    }
}
