//! Rings and slots in this process's memory.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::Error;
use crate::ring::{self, Ring};
use crate::slot::{self, Slots};

/// Memory of a map, until it is dropped.
#[derive(Debug)]
struct Mapping(NonNull<u8>, usize);

// SAFETY: an address; what may be done there with it is up to who has it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Of a map, from its start.
    fn new(fd: BorrowedFd<'_>, len: usize) -> Result<Mapping, Error> {
        // SAFETY: a fresh mapping.
        let map = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, 0) };
        let map = map.map_err(Self::refused)?;
        NonNull::new(map.cast()).map(|start| Mapping(start, len)).ok_or(Self::refused(Errno::NOMEM))
    }

    /// Its first `len` bytes can be written, too: what the kernel lets be written of a map it wants mapped by itself.
    fn open(&self, fd: BorrowedFd<'_>, len: usize) -> Result<(), Error> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: in the place of the same bytes of this mapping, which nobody has looked at.
        let done = unsafe { mmap(self.0.as_ptr().cast(), len, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0) };
        done.map(drop).map_err(Self::refused)
    }

    fn refused(errno: Errno) -> Error {
        Error::Call("mapping a BPF map", errno)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made above, and who has it knows of no copies of its address.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), self.1) };
    }
}

/// A ring, mapped.
#[derive(Debug)]
pub struct MappedRing {
    ring: Ring,
    _mapping: Mapping,
}

impl MappedRing {
    /// One of the rings of [`crate::ProcessMaps`]. It is mapped by one process at a time, and once.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(ring: BorrowedFd<'_>) -> Result<MappedRing, Error> {
        let mapping = Mapping::new(ring, ring::MAPPED_BYTES)?;
        mapping.open(ring, ring::WRITABLE_BYTES)?;
        // SAFETY: a ring, which is mapped for as long as this lives.
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

/// The slots of a process, mapped.
#[derive(Debug)]
pub struct MappedSlots {
    slots: Slots,
    _mapping: Mapping,
}

impl MappedSlots {
    /// Those of [`crate::ProcessMaps`].
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(slots: BorrowedFd<'_>) -> Result<MappedSlots, Error> {
        let mapping = Mapping::new(slots, slot::MAPPED_BYTES)?;
        // SAFETY: so many bytes of a mapping, which is there for as long as this lives.
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
