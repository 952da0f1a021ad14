//! Mapped rings and slots.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::Error;
use crate::ring::{self, Ring};
use crate::slot::{self, Slots};

#[derive(Debug)]
struct Mapping(NonNull<u8>, usize);

// SAFETY: an address; its users answer for the accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, len: usize) -> Result<Mapping, Error> {
        // SAFETY: a fresh mapping.
        let map = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, 0) };
        let map = map.map_err(Self::refused)?;
        NonNull::new(map.cast()).map(|start| Mapping(start, len)).ok_or(Self::refused(Errno::NOMEM))
    }

    /// Makes the first `len` bytes writable: the kernel wants them mapped separately.
    fn open(&self, fd: BorrowedFd<'_>, len: usize) -> Result<(), Error> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces the same bytes of this mapping, unread so far.
        let done = unsafe { mmap(self.0.as_ptr().cast(), len, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0) };
        done.map(drop).map_err(Self::refused)
    }

    fn refused(errno: Errno) -> Error {
        Error::Call("mapping a BPF map", errno)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made above; no copy of its address is left.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), self.1) };
    }
}

/// A mapped ring.
#[derive(Debug)]
pub struct MappedRing {
    ring: Ring,
    _mapping: Mapping,
}

impl MappedRing {
    /// A ring of [`crate::ProcessMaps`], mapped once, by one process at a time.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(ring: BorrowedFd<'_>) -> Result<MappedRing, Error> {
        let mapping = Mapping::new(ring, ring::MAPPED_BYTES)?;
        mapping.open(ring, ring::WRITABLE_BYTES)?;
        // SAFETY: a ring, mapped while this lives.
        let ring = unsafe { Ring::new(mapping.0) };
        Ok(MappedRing { ring, _mapping: mapping })
    }
}

impl Deref for MappedRing {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        &self.ring
    }
}

impl DerefMut for MappedRing {
    fn deref_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }
}

/// A process's mapped slots.
#[derive(Debug)]
pub struct MappedSlots {
    slots: Slots,
    _mapping: Mapping,
}

impl MappedSlots {
    /// The slots of [`crate::ProcessMaps`].
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(slots: BorrowedFd<'_>) -> Result<MappedSlots, Error> {
        let mapping = Mapping::new(slots, slot::MAPPED_BYTES)?;
        // SAFETY: the mapping has this size and outlives the slots.
        let slots = unsafe { Slots::new(mapping.0) };
        Ok(MappedSlots { slots, _mapping: mapping })
    }
}

impl Deref for MappedSlots {
    type Target = Slots;

    fn deref(&self) -> &Slots {
        &self.slots
    }
}
