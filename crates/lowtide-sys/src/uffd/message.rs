//! Messages of a userfaultfd.

use core::mem::MaybeUninit;

use arrayvec::ArrayVec;
use linux_raw_sys::general as sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};

use super::Uffd;
use crate::clock::timeout;

/// Most messages in one read.
pub const MOST_READ: usize = 4;

/// An awaited access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read of a missing page.
    Read,
    /// Write to a missing page.
    Write,
    /// Write to a protected page.
    Protected,
}

/// A message.
#[derive(Debug)]
pub enum Message {
    /// A thread waits for the page at `addr`.
    Fault {
        /// Address of the page.
        addr: usize,
        /// Thread id.
        thread: u32,
        /// The access.
        access: Access,
    },
    /// A fork, with the child's userfaultfd.
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
    /// The range will lose its pages (`MADV_DONTNEED`, `MADV_FREE`).
    Remove {
        /// First byte.
        start: usize,
        /// End.
        end: usize,
    },
    /// The range has been unmapped.
    Unmap {
        /// First byte.
        start: usize,
        /// End.
        end: usize,
    },
}

impl Uffd {
    /// Whether a message is pending. (A blocking descriptor polls as an error.)
    pub fn is_readable(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        poll(&mut polled, timeout(0).as_ref()).is_ok() && polled[0].revents().contains(PollFlags::IN)
    }

    /// Waits up to `ms` milliseconds (negative: for ever).
    pub fn wait_readable(&self, ms: i32) -> bool {
        self.wait_readable_for(timeout(ms).as_ref())
    }

    /// Waits; `None`: for ever.
    pub fn wait_readable_for(&self, timeout: Option<&Timespec>) -> bool {
        let ready = poll(&mut [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)], timeout);
        ready.is_ok_and(|ready| ready > 0)
    }

    /// Reads a message. Hold the space lock exclusively until it is applied.
    ///
    /// # Errors
    /// `AGAIN`: none.
    pub fn read(&self) -> Result<Message, Errno> {
        self.read_several(1)?.pop().ok_or(Errno::AGAIN)
    }

    /// Reads up to `most` ([`MOST_READ`]) messages, in order of application. Hold the space lock
    /// exclusively until they are applied.
    ///
    /// # Errors
    /// `AGAIN`: none. `MFILE`, `NFILE`: a fork's message stays for lack of descriptors.
    pub fn read_several(&self, most: usize) -> Result<ArrayVec<Message, MOST_READ>, Errno> {
        let mut buffer = [const { MaybeUninit::<sys::uffd_msg>::uninit() }; MOST_READ];
        let room = &mut buffer[..most.clamp(1, MOST_READ)];
        // SAFETY: the same memory, as uninitialised bytes.
        let bytes = unsafe { core::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<MaybeUninit<u8>>(), size_of_val(room)) };
        let (got, _) = rustix::io::read(&self.fd, bytes)?;
        let read = got.len() / size_of::<sys::uffd_msg>();
        // SAFETY: written by the kernel, used once.
        Ok(buffer[..read].iter().filter_map(|message| unsafe { Message::from_kernel(message.assume_init_ref()) }).collect())
    }

    /// Reads a message without waiting, even if the descriptor has become blocking through a
    /// duplicate.
    ///
    /// # Errors
    /// As [`Uffd::read`]; `OPNOTSUPP` before Linux 6.10.
    pub fn read_at_once(&self) -> Result<Message, Errno> {
        const HERE: u64 = u64::MAX;
        let mut message = MaybeUninit::<sys::uffd_msg>::zeroed();
        // SAFETY: the same memory, zeroed, as bytes.
        let bytes = unsafe { core::slice::from_raw_parts_mut(message.as_mut_ptr().cast::<u8>(), size_of_val(&message)) };
        let read = rustix::io::preadv2(&self.fd, &mut [IoSliceMut::new(bytes)], HERE, ReadWriteFlags::NOWAIT)?;
        // SAFETY: written by the kernel.
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
    /// None: not requested, so never.
    ///
    /// # Safety
    /// A message of the kernel, used once: a fork's owns a descriptor.
    unsafe fn from_kernel(message: &sys::uffd_msg) -> Option<Message> {
        // SAFETY: `event` selects the member; the caller owns the descriptor.
        unsafe {
            let arg = message.arg;
            Some(match u32::from(message.event) {
                sys::UFFD_EVENT_PAGEFAULT => Message::Fault {
                    addr: arg.pagefault.address as usize & !0xfff,
                    thread: arg.pagefault.feat.ptid,
                    access: Access::from_kernel(arg.pagefault.flags),
                },
                sys::UFFD_EVENT_FORK => Message::Fork(Uffd::ready(OwnedFd::from_raw_fd(arg.fork.ufd as RawFd))),
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
