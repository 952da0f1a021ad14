//! How a userfaultfd is come by: made, and asked for its features.

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

/// USERFAULTFD_IOC_NEW.
const NEW: Opcode = opcode::none(sys::USERFAULTFD_IOC as u8, 0);

/// Kernel features without which lowtide can't work: the events, and UFFDIO_MOVE (Linux 6.8).
pub const NEEDED_FEATURES: u64 = sys::UFFD_FEATURE_EVENT_FORK as u64
    | sys::UFFD_FEATURE_EVENT_REMAP as u64
    | sys::UFFD_FEATURE_EVENT_REMOVE as u64
    | sys::UFFD_FEATURE_EVENT_UNMAP as u64
    | sys::UFFD_FEATURE_THREAD_ID as u64
    | FEATURE_MOVE;

/// Accessed bits: UFFD_FEATURE_RWP and UFFD_FEATURE_RWP_ASYNC (Linux 7.3), which go together: the first touch of an armed page
/// ([`Uffd::arm`]) is seen by PAGEMAP_SCAN, and is no message.
pub const ACCESSED_BITS: u64 = 1 << 17 | 1 << 18;

/// UFFD_FEATURE_MOVE.
pub const FEATURE_MOVE: u64 = sys::UFFD_FEATURE_MOVE as u64;

/// What the pager of the library needs, to which nothing happens that it does not do itself: no events.
pub const NEEDED_WITHOUT_EVENTS: u64 = FEATURE_MOVE;
/// A missing page is a SIGBUS for the thread that touched it, and no message.
pub const FEATURE_SIGBUS: u64 = sys::UFFD_FEATURE_SIGBUS as u64;

/// Makes a non-blocking userfaultfd of this process's memory in full mode, by the system call or by `/dev/userfaultfd`.
///
/// # Errors
/// Those of the system call; `PERM`: neither is allowed.
pub fn create() -> Result<OwnedFd, Errno> {
    // SAFETY: a new userfaultfd changes nothing until memory is registered.
    let by_call = unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) };
    by_call.or_else(|error| {
        let device = rustix::fs::open(c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        create_on(device.map_err(|_| error)?.as_fd())
    })
}

/// Makes a non-blocking userfaultfd for faults of user mode only: a system call that meets a missing page fails with EFAULT. No
/// privilege is needed.
///
/// # Errors
/// `NOSYS`: the kernel has none. `INVAL`: it is older than 5.11. `PERM`: a filter of system calls forbids it.
pub fn create_for_user_mode() -> Result<OwnedFd, Errno> {
    let flags =
        UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | UserfaultfdFlags::from_bits_retain(sys::UFFD_USER_MODE_ONLY);
    // SAFETY: a new userfaultfd changes nothing until memory is registered.
    unsafe { rustix::mm::userfaultfd(flags) }
}

/// The same by an open `/dev/userfaultfd`, which may come from another process: no privilege is asked for.
///
/// # Errors
/// `NOTTY`: it is something else.
pub fn create_on(device: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: USERFAULTFD_IOC_NEW takes its flags by value, in place of the pointer.
    let fd = unsafe { rustix::ioctl::ioctl(device, NewByDevice)? };
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Shakes hands for `features` with a fresh userfaultfd, which may be another process's: the kernel asks whoever calls this for
/// the privilege to see forks. The features that the kernel knows.
///
/// # Errors
/// `PERM`: the privilege is missing (another process may try). `INVAL`: the kernel lacks a feature.
pub fn handshake(uffd: BorrowedFd<'_>, features: u64) -> Result<u64, Errno> {
    let mut api = sys::uffdio_api { api: sys::UFFD_API as u64, features, ioctls: 0 };
    // SAFETY: UFFDIO_API takes a uffdio_api.
    unsafe { ioctl(uffd, UFFDIO_API, &mut api)? };
    Ok(api.features)
}

impl Uffd {
    /// Opens a non-blocking userfaultfd in full mode (kernel accesses wait too) and shakes hands for `features`.
    ///
    /// # Errors
    /// `PERM` or `ACCESS`: the privilege is missing. `INVAL`: the kernel lacks a feature. `NOSYS`: it has no userfaultfd.
    pub fn open(features: u64) -> Result<Uffd, Errno> {
        let fd = create()?;
        handshake(fd.as_fd(), features)?;
        let uffd = Uffd::ready(fd, features);
        if features & NEEDED_FEATURES & !NEEDED_WITHOUT_EVENTS != 0 { uffd.with_probe(None) } else { Ok(uffd) }
    }

    /// The same for faults of user mode only, without privilege: see [`create_for_user_mode`].
    ///
    /// # Errors
    /// Those of [`create_for_user_mode`]; `INVAL`: the kernel lacks a feature.
    pub fn open_for_user_mode(features: u64) -> Result<Uffd, Errno> {
        let fd = create_for_user_mode()?;
        handshake(fd.as_fd(), features)?;
        Ok(Uffd::ready(fd, features))
    }

    /// A userfaultfd of this process (see [`create`]) with which somebody has shaken hands for `features`.
    pub fn ready(fd: OwnedFd, features: u64) -> Uffd {
        Uffd { fd, has_accessed_bits: features & ACCESSED_BITS == ACCESSED_BITS, probe: None }
    }
}

/// USERFAULTFD_IOC_NEW on /dev/userfaultfd.
struct NewByDevice;

// SAFETY: the call takes flags by value and returns a descriptor; it touches no memory.
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
