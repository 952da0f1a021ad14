//! userfaultfd: the system calls, typed. Nothing here keeps state or takes a lock.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use arrayvec::ArrayVec;
use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::mm::UserfaultfdFlags;

/// Most messages that are read at a time.
pub const MOST_READ: usize = 4;

const NEW: Opcode = 0xaa00;
const API: Opcode = 0xc018_aa3f;
/// UFFDIO_REGISTER, whose argument begins with the start and the length of a range.
pub const REGISTER: Opcode = 0xc020_aa00;
const UNREGISTER: Opcode = 0x8010_aa01;
const WAKE: Opcode = 0x8010_aa02;
const COPY: Opcode = 0xc028_aa03;
const MOVE: Opcode = 0xc028_aa05;
const CONTINUE: Opcode = 0xc020_aa07;
const POISON: Opcode = 0xc020_aa08;

/// Kernel features without which lowtide can't work: the events, and UFFDIO_MOVE (Linux 6.8).
pub const NEEDED_FEATURES: u64 = sys::UFFD_FEATURE_EVENT_FORK as u64
    | sys::UFFD_FEATURE_EVENT_REMAP as u64
    | sys::UFFD_FEATURE_EVENT_REMOVE as u64
    | sys::UFFD_FEATURE_EVENT_UNMAP as u64
    | sys::UFFD_FEATURE_THREAD_ID as u64
    | FEATURE_MOVE;

const MOVE_DONTWAKE: u64 = 1 << 0;
const MOVE_ALLOW_SRC_HOLES: u64 = 1 << 1;

/// UFFD_USER_MODE_ONLY.
const USER_MODE_ONLY: u32 = 1;

/// UFFD_FEATURE_MOVE.
pub const FEATURE_MOVE: u64 = 1 << 16;

/// What the pager of the library needs, to which nothing happens that it does not do itself: no events.
pub const NEEDED_WITHOUT_EVENTS: u64 = FEATURE_MOVE;
/// A missing page is a SIGBUS for the thread that touched it, and no message.
pub const FEATURE_SIGBUS: u64 = sys::UFFD_FEATURE_SIGBUS as u64;

/// One ioctl whose argument is a structure that the kernel may write to even when it fails.
struct Raw<'a, T> {
    opcode: Opcode,
    arg: &'a mut T,
}

// SAFETY: `opcode` is one that takes a pointer to `T` (each use below pairs them); the kernel writes inside `T` only.
unsafe impl<T> Ioctl for Raw<'_, T> {
    type Output = i32;
    const IS_MUTATING: bool = true;
    fn opcode(&self) -> Opcode {
        self.opcode
    }
    fn as_ptr(&mut self) -> *mut c_void {
        core::ptr::from_mut(self.arg).cast()
    }
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<i32, Errno> {
        Ok(out)
    }
}

/// Runs `opcode` on `fd` with `arg`.
///
/// # Safety
/// The opcode takes a pointer to `T`, and what it does to memory outside of `T` is the caller's affair.
pub(crate) unsafe fn ioctl<T>(fd: BorrowedFd<'_>, opcode: Opcode, arg: &mut T) -> Result<i32, Errno> {
    // SAFETY: handed on to the caller.
    unsafe { rustix::ioctl::ioctl(fd, Raw { opcode, arg }) }
}

/// When the threads run on that wait for a page that is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// At once.
    Now,
    /// When [`Uffd::wake`] says so.
    Later,
}

/// What a MOVE does about pages that are missing where it takes them from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// Ends there.
    Stop,
    /// Goes on behind them.
    Pass,
}

/// A message read from a userfaultfd.
#[derive(Debug)]
pub enum Message {
    /// A thread waits for the page at `addr`.
    Fault {
        /// Faulting address, as given by the kernel (page aligned).
        addr: usize,
        /// Id of the thread.
        thread: u32,
    },
    /// The process forked; this is the child's userfaultfd.
    Fork(Uffd),
    /// `mremap` moved `len` bytes (the OLD length).
    Remap {
        /// Old address.
        from: usize,
        /// New address.
        to: usize,
        /// Bytes.
        len: usize,
    },
    /// The range is about to lose its pages (`MADV_DONTNEED`, `MADV_FREE`): reported before it happens.
    Remove {
        /// First byte.
        start: usize,
        /// End.
        end: usize,
    },
    /// The range was unmapped: reported after it happened.
    Unmap {
        /// First byte.
        start: usize,
        /// End.
        end: usize,
    },
}

/// How far a COPY or MOVE came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done.
    pub done: usize,
    /// Why it stopped; None: it is complete. `AGAIN` with nothing done: an event waits to be read.
    pub error: Option<Errno>,
}

/// What the kernel says of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing now: mappings, whichever, are changing. An event waits, will come, or was read by now and its thread has not run
    /// yet.
    Changing,
    /// It is registered with a userfaultfd.
    Registered,
    /// It is not, or nothing is mapped there.
    NotRegistered,
}

/// A userfaultfd of this process (or, from a fork event, of a child).
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
}

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
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
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
    unsafe { ioctl(uffd, API, &mut api)? };
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
        Ok(Uffd { fd })
    }

    /// The same for faults of user mode only, without privilege: see [`create_for_user_mode`].
    ///
    /// # Errors
    /// Those of [`create_for_user_mode`]; `INVAL`: the kernel lacks a feature.
    pub fn open_for_user_mode(features: u64) -> Result<Uffd, Errno> {
        let fd = create_for_user_mode()?;
        handshake(fd.as_fd(), features)?;
        Ok(Uffd { fd })
    }

    /// A userfaultfd of this process (see [`create`]) with which somebody has shaken hands.
    pub fn ready(fd: OwnedFd) -> Uffd {
        Uffd { fd }
    }

    /// The descriptor, for poll.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The descriptor's number.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether a message waits to be read.
    pub fn is_readable(&self) -> bool {
        self.wait_readable(0)
    }

    /// Waits up to `ms` milliseconds (negative: for ever) for a message; whether there is one.
    pub fn wait_readable(&self, ms: i32) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = Timespec { tv_sec: i64::from(ms) / 1000, tv_nsec: i64::from(ms) % 1000 * 1_000_000 };
        let ready = poll(&mut [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)], (ms >= 0).then_some(&timeout));
        ready.is_ok_and(|ready| ready > 0)
    }

    /// Registers `start .. start + len` for missing pages.
    ///
    /// # Errors
    /// `BUSY`: registered with another userfaultfd. `INVAL`: not a kind of memory that can be registered.
    ///
    /// # Safety
    /// From now on every missing page in the range must be served.
    pub unsafe fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = sys::uffdio_register {
            range: sys::uffdio_range { start: start as u64, len: len as u64 },
            mode: sys::UFFDIO_REGISTER_MODE_MISSING as u64,
            ioctls: 0,
        };
        // SAFETY: REGISTER takes a uffdio_register.
        unsafe { ioctl(self.fd.as_fd(), REGISTER, &mut arg).map(drop) }
    }

    /// Ends the registration of a range: missing pages there read as zero from now on.
    ///
    /// # Safety
    /// No page of the range may be in lowtide's hands.
    pub unsafe fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = sys::uffdio_range { start: start as u64, len: len as u64 };
        // SAFETY: UNREGISTER takes a uffdio_range.
        unsafe { ioctl(self.fd.as_fd(), UNREGISTER, &mut arg).map(drop) }
    }

    /// Lets the threads that wait for pages of the range try again.
    pub fn wake(&self, start: usize, len: usize) {
        let mut arg = sys::uffdio_range { start: start as u64, len: len as u64 };
        // SAFETY: WAKE takes a uffdio_range and touches no memory.
        let _ = unsafe { ioctl(self.fd.as_fd(), WAKE, &mut arg) };
    }

    /// Puts copies of the `len` bytes at `src` at `dst`, where no pages may be.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes and never missing; the bytes are what the program must see at `dst`.
    pub unsafe fn copy(&self, dst: usize, src: *const u8, len: usize, wake: Wake) -> Progress {
        let mode = if wake == Wake::Later { u64::from(sys::UFFDIO_COPY_MODE_DONTWAKE) } else { 0 };
        let mut arg = sys::uffdio_copy { dst: dst as u64, src: src as u64, len: len as u64, mode, copy: 0 };
        // SAFETY: COPY takes a uffdio_copy; the caller answers for the addresses.
        let result = unsafe { ioctl(self.fd.as_fd(), COPY, &mut arg) };
        progress(result, arg.copy, len)
    }

    /// From now on a touch of the missing pages of the range is a SIGBUS (Linux 6.6), until they are dropped. Wakes who waits
    /// for them.
    ///
    /// # Errors
    /// `INVAL`: the kernel is older. `EXIST`: a page is there.
    pub fn poison(&self, start: usize, len: usize) -> Result<(), Errno> {
        let range = sys::uffdio_range { start: start as u64, len: len as u64 };
        let mut arg = sys::uffdio_poison { range, mode: 0, updated: 0 };
        // SAFETY: POISON takes a uffdio_poison. Nothing reads other bytes for it.
        unsafe { ioctl(self.fd.as_fd(), POISON, &mut arg).map(drop) }
    }

    /// Whether private memory at `addr` is registered, and whether mappings are changing. Some tenths of a microsecond.
    pub fn standing(&self, addr: usize) -> Standing {
        let range = sys::uffdio_range { start: (addr & !(PAGE_SIZE - 1)) as u64, len: PAGE_SIZE as u64 };
        let mut arg = sys::uffdio_continue { range, mode: 0, mapped: 0 };
        // SAFETY: CONTINUE takes a uffdio_continue. It is for shared memory: of private memory the kernel says only why it does
        // nothing, and what it looks at comes in this order. (In shared memory it would map a page that the file has.)
        match unsafe { ioctl(self.fd.as_fd(), CONTINUE, &mut arg) } {
            Err(Errno::NOENT) => Standing::NotRegistered,
            Ok(_) | Err(Errno::INVAL | Errno::EXIST) => Standing::Registered,
            // Whatever that is, it is no answer.
            Err(_) => Standing::Changing,
        }
    }

    /// Moves the pages at `src` to `dst`, where no pages may be. Stops at the first page that can't be moved. What is missing
    /// at `src` stays missing at `dst` and is counted as done, if `holes` says so; else it stops there.
    ///
    /// # Safety
    /// The page map says that the pages are on their way: a fault on `src` must find them.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, holes: Holes, wake: Wake) -> Progress {
        let mode =
            if holes == Holes::Pass { MOVE_ALLOW_SRC_HOLES } else { 0 } | if wake == Wake::Later { MOVE_DONTWAKE } else { 0 };
        let mut arg = sys::uffdio_move { dst: dst as u64, src: src as u64, len: len as u64, mode, move_: 0 };
        // SAFETY: MOVE takes a uffdio_move; the caller answers for the addresses.
        let result = unsafe { ioctl(self.fd.as_fd(), MOVE, &mut arg) };
        progress(result, arg.move_, len)
    }

    /// Reads one message if there is one. Call with the space lock held exclusively, and apply what comes before letting go.
    ///
    /// # Errors
    /// `AGAIN`: nothing to read.
    pub fn read(&self) -> Result<Message, Errno> {
        self.read_several(1)?.pop().ok_or(Errno::AGAIN)
    }

    /// Reads what there is, `most` messages at most ([`MOST_READ`] bounds it), in the order in which they are to be applied.
    /// Call with the space lock held exclusively, and apply what comes before letting go.
    ///
    /// # Errors
    /// `AGAIN`: nothing to read. `MFILE`, `NFILE`: the next is of a fork, for which there is no descriptor. It stays.
    pub fn read_several(&self, most: usize) -> Result<ArrayVec<Message, MOST_READ>, Errno> {
        let mut buffer = [const { MaybeUninit::<sys::uffd_msg>::uninit() }; MOST_READ];
        let room = &mut buffer[..most.clamp(1, MOST_READ)];
        // SAFETY: the same memory, as bytes that need not be initialised.
        let bytes = unsafe { core::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<MaybeUninit<u8>>(), size_of_val(room)) };
        let (got, _) = rustix::io::read(&self.fd, bytes)?;
        let read = got.len() / size_of::<sys::uffd_msg>();
        // SAFETY: the kernel wrote all of these, each message once.
        Ok(buffer[..read].iter().filter_map(|message| unsafe { Message::from_kernel(message.assume_init_ref()) }).collect())
    }
}

impl Message {
    /// None: an event that was not asked for; such do not come.
    ///
    /// # Safety
    /// The kernel wrote it, and it is taken up once: a fork's brings a descriptor.
    unsafe fn from_kernel(message: &sys::uffd_msg) -> Option<Message> {
        // SAFETY: which member counts is told by `event`, and the descriptor is the caller's.
        unsafe {
            let arg = message.arg;
            Some(match u32::from(message.event) {
                sys::UFFD_EVENT_PAGEFAULT => {
                    Message::Fault { addr: arg.pagefault.address as usize & !0xfff, thread: arg.pagefault.feat.ptid }
                }
                sys::UFFD_EVENT_FORK => Message::Fork(Uffd { fd: OwnedFd::from_raw_fd(arg.fork.ufd as RawFd) }),
                sys::UFFD_EVENT_REMAP => {
                    Message::Remap { from: arg.remap.from as usize, to: arg.remap.to as usize, len: arg.remap.len as usize }
                }
                sys::UFFD_EVENT_REMOVE => Message::Remove { start: arg.remove.start as usize, end: arg.remove.end as usize },
                sys::UFFD_EVENT_UNMAP => Message::Unmap { start: arg.remove.start as usize, end: arg.remove.end as usize },
                _ => return None,
            })
        }
    }
}

fn progress(result: Result<i32, Errno>, done: i64, len: usize) -> Progress {
    match result {
        Ok(_) => Progress { done: len, error: None },
        // Done in part is reported as AGAIN with the bytes done; the true reason comes when it is tried again.
        Err(_) if done > 0 => Progress { done: done as usize, error: Some(Errno::AGAIN) },
        Err(e) => Progress { done: 0, error: Some(e) },
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
