//! What is read from a userfaultfd: faults, and what the program does to its mappings.

use core::mem::MaybeUninit;

use arrayvec::ArrayVec;
use linux_raw_sys::general as sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};

use super::Uffd;
use crate::sys::clock::timeout;

/// Most messages that are read at a time.
pub const MOST_READ: usize = 4;

/// What a thread wants of the page that it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It is missing, and to be read.
    Read,
    /// It is missing, and to be written.
    Write,
    /// It is there, write-protected, and to be written.
    Protected,
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
        /// What it wants there.
        access: Access,
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

impl Uffd {
    /// Whether a message waits to be read. (A descriptor that waits in reads shows an error instead.)
    pub fn is_readable(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        poll(&mut polled, timeout(0).as_ref()).is_ok() && polled[0].revents().contains(PollFlags::IN)
    }

    /// Waits up to `ms` milliseconds (negative: for ever) for a message; whether there is one.
    pub fn wait_readable(&self, ms: i32) -> bool {
        self.wait_readable_for(timeout(ms).as_ref())
    }

    /// The same for this long at most; `None`: for ever.
    pub fn wait_readable_for(&self, timeout: Option<&Timespec>) -> bool {
        let ready = poll(&mut [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)], timeout);
        ready.is_ok_and(|ready| ready > 0)
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

    /// Reads one message, and never waits, though the descriptor may have been made to: another process has a duplicate.
    ///
    /// # Errors
    /// As [`Uffd::read`]. `OPNOTSUPP`: before Linux 6.10 nobody can read so.
    pub fn read_at_once(&self) -> Result<Message, Errno> {
        /// Where the file is, which it has no place for.
        const HERE: u64 = u64::MAX;
        let mut message = MaybeUninit::<sys::uffd_msg>::zeroed();
        // SAFETY: the same memory, of which all bytes are there.
        let bytes = unsafe { core::slice::from_raw_parts_mut(message.as_mut_ptr().cast::<u8>(), size_of_val(&message)) };
        let read = rustix::io::preadv2(&self.fd, &mut [IoSliceMut::new(bytes)], HERE, ReadWriteFlags::NOWAIT)?;
        // SAFETY: the kernel wrote all of it.
        let message = (read == size_of_val(&message)).then(|| unsafe { Message::from_kernel(message.assume_init_ref()) });
        message.flatten().ok_or(Errno::AGAIN)
    }
}

impl Access {
    fn from_kernel(flags: u64) -> Access {
        if flags & u64::from(sys::UFFD_PAGEFAULT_FLAG_WP) != 0 {
            Access::Protected
        } else if flags & u64::from(sys::UFFD_PAGEFAULT_FLAG_WRITE) != 0 {
            Access::Write
        } else {
            Access::Read
        }
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
                sys::UFFD_EVENT_PAGEFAULT => Message::Fault {
                    addr: arg.pagefault.address as usize & !0xfff,
                    thread: arg.pagefault.feat.ptid,
                    access: Access::from_kernel(arg.pagefault.flags),
                },
                sys::UFFD_EVENT_FORK => {
                    // Nothing is registered or armed with it.
                    Message::Fork(Uffd::ready(OwnedFd::from_raw_fd(arg.fork.ufd as RawFd), 0))
                }
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
