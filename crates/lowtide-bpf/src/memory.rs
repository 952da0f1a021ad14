//! Rings and slots in this process's memory.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::Error;
use crate::ring::{RING_BYTES, Ring};
use crate::slot::{SLOTS_BYTES, Slots};

const PAGE: usize = 4096;

/// Memory of a map, until it is dropped.
#[derive(Debug)]
struct Mapping(NonNull<u8>, usize);

// SAFETY: an address; what may be done there with it is up to who has it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, offset: usize, len: usize, access: ProtFlags) -> Result<Mapping, Error> {
        // SAFETY: a fresh mapping.
        let map = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, offset as u64) };
        let map = map.map_err(|e| Error::Call("mapping a BPF map", e))?;
        NonNull::new(map.cast())
            .map(|start| Mapping(start, len))
            .ok_or(Error::Call("mapping a BPF map", rustix::io::Errno::NOMEM))
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
    _consumer: Mapping,
    _rest: Mapping,
}

impl MappedRing {
    /// One of the rings of [`crate::ProcessMaps`]. It is mapped by one process at a time, and once.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(ring: BorrowedFd<'_>) -> Result<MappedRing, Error> {
        // A page of each position, then the records, twice.
        let consumer = Mapping::new(ring, 0, PAGE, ProtFlags::READ | ProtFlags::WRITE)?;
        let rest = Mapping::new(ring, PAGE, PAGE + 2 * RING_BYTES, ProtFlags::READ)?;
        // SAFETY: inside of the mapping.
        let data = unsafe { rest.0.add(PAGE) };
        // SAFETY: the form of a BPF ring buffer of that size, which is mapped for as long as this lives.
        let ring = unsafe { Ring::new(consumer.0.cast(), rest.0.cast(), data) };
        Ok(MappedRing { ring, _consumer: consumer, _rest: rest })
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
        let mapping = Mapping::new(slots, 0, SLOTS_BYTES.next_multiple_of(PAGE), ProtFlags::READ)?;
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
