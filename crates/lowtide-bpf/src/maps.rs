//! The maps of the loading process, and those of each process, which has no other's.
//!
//! | map | holds | owner |
//! |---|---|---|
//! | processes | each process's handler, its stack use, number of rings | loader |
//! | rings | by process and number: a ring | loader |
//! | slots | by process: its slots | loader |
//! | counts | faults that went to a ring, by reason | loader |
//! | a ring | records of faults of one process | loader, that process |
//! | slots | each thread's fault in one process | loader, that process |
//!
//! So a process's writes to slots or to its ring's position affect only its own records.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

use crate::call::{self, AS_NEEDED, MAPPABLE, MapKind, MapPlan, Plain};
use crate::error::Error;
use crate::record::Why;
use crate::ring::RING_BYTES;
use crate::slot::{SLOTS, Slot};

const PROCESSES: u32 = 1 << 14;
const RINGS: u32 = 1 << 16;

/// A process whose faults are to be reported.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Registration {
    /// The handler's address: signals are sent only while it is installed.
    pub handler: u64,
    /// Bytes of stack for the signal's frame and the handler. 0: no check for room.
    pub stack: u64,
    /// Its seccomp filters (`Seccomp_filters` in its status): with another number no signal is
    /// sent.
    pub filters: u32,
    /// Rings, from 1 to 1024; a fault's is the CPU's number modulo this.
    pub rings: u32,
    /// [`Stacks`], as a number.
    pub stacks: u64,
}

/// The stacks on which threads without an alternate stack get the signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Stacks {
    /// All with the frame's space in memory. A coroutine's stack without a guard may end there: the
    /// frame then overwrites other memory.
    Any,
    /// Only with certain room: the main thread's stack, and the C library's threads near their
    /// beginning.
    Known,
}

// SAFETY: three words of 8 bytes and two of 4, of any value.
unsafe impl Plain for Registration {}

impl Registration {
    /// The handler's address, and its `stack` bytes beside the signal's frame; on any stack.
    pub fn new(handler: u64, stack: usize, filters: u32, rings: u32) -> Registration {
        // SAFETY: returns a number. A machine has one frame size.
        let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
        Registration { handler, stack: frame + stack as u64, filters, rings, stacks: Stacks::Any as u64 }
    }

    /// Restricts the stacks.
    pub fn on(self, stacks: Stacks) -> Registration {
        Registration { stacks: stacks as u64, ..self }
    }

    /// Of this process now: see [`Registration::new`].
    pub fn of_this_process(handler: usize, stack: usize, rings: u32) -> Registration {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let filters = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:")?.trim().parse().ok());
        Registration::new(handler as u64, stack, filters.unwrap_or(0), rings)
    }
}

/// A process's own maps, which no other process's programs write.
#[derive(Debug)]
pub struct ProcessMaps {
    /// Its rings, by number, for POLLIN and [`crate::MappedRing`].
    pub rings: Vec<OwnedFd>,
    /// Its slots, for [`crate::MappedSlots`].
    pub slots: OwnedFd,
}

#[derive(Debug)]
pub struct Map<K, V> {
    fd: OwnedFd,
    types: PhantomData<(K, V)>,
}

impl<K: Plain, V: Plain> Map<K, V> {
    fn new(kind: MapKind, entries: u32, flags: u32, inner: RawFd) -> Result<Map<K, V>, Errno> {
        let plan = MapPlan { kind, key: size_of::<K>() as u32, value: size_of::<V>() as u32, entries, flags, inner };
        Ok(Map { fd: call::make_map(plan)?, types: PhantomData })
    }

    pub fn descriptor(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn set(&self, key: K, value: V) -> Result<(), Errno> {
        // SAFETY: made with these types.
        unsafe { call::set(self.fd.as_fd(), key, value) }
    }

    fn remove(&self, key: K) -> Result<(), Errno> {
        // SAFETY: as above.
        unsafe { call::remove(self.fd.as_fd(), key) }
    }
}

fn ring() -> Result<OwnedFd, Errno> {
    call::make_map(MapPlan { kind: MapKind::Ring, key: 0, value: 0, entries: RING_BYTES as u32, flags: 0, inner: 0 })
}

fn slots() -> Result<OwnedFd, Errno> {
    let (value, entries) = (size_of::<Slot>() as u32, SLOTS as u32 + 1);
    call::make_map(MapPlan { kind: MapKind::Array, key: 4, value, entries, flags: MAPPABLE, inner: 0 })
}

#[derive(Debug)]
pub struct Maps {
    pub processes: Map<u32, Registration>,
    pub rings: Map<[u32; 2], RawFd>,
    pub slots: Map<u32, RawFd>,
    pub counts: Map<u32, u64>,
}

impl Maps {
    /// # Errors
    /// [`Error::NotAllowed`], [`Error::Call`].
    pub fn new() -> Result<Maps, Error> {
        let fail = |e| Error::of_privileged("a BPF map", e);
        let (a_ring, some_slots) = (ring().map_err(fail)?, slots().map_err(fail)?);
        Ok(Maps {
            processes: Map::new(MapKind::Hash, PROCESSES, AS_NEEDED, 0).map_err(fail)?,
            rings: Map::new(MapKind::HashOfMaps, RINGS, AS_NEEDED, a_ring.as_raw_fd()).map_err(fail)?,
            slots: Map::new(MapKind::HashOfMaps, PROCESSES, AS_NEEDED, some_slots.as_raw_fd()).map_err(fail)?,
            counts: Map::new(MapKind::Array, Why::ALL.len() as u32, 0, 0).map_err(fail)?,
        })
    }

    /// From then on the process's faults are reported.
    ///
    /// # Errors
    /// [`Error::Call`]: nothing of it is left.
    pub fn add(&self, process: u32, registration: Registration) -> Result<ProcessMaps, Error> {
        let made = self.maps_of(process, registration);
        if made.is_err() {
            let _ = self.remove(process, registration.rings);
        }
        made.map_err(|e| Error::Call("registering a process with BPF programs", e))
    }

    fn maps_of(&self, process: u32, registration: Registration) -> Result<ProcessMaps, Errno> {
        if !(1..=1024).contains(&registration.rings) {
            return Err(Errno::INVAL);
        }
        let mut maps = ProcessMaps { rings: Vec::new(), slots: slots()? };
        self.slots.set(process, maps.slots.as_raw_fd())?;
        for number in 0..registration.rings {
            let ring = ring()?;
            self.rings.set([process, number], ring.as_raw_fd())?;
            maps.rings.push(ring);
        }
        // Last: a program that finds this finds the others.
        self.processes.set(process, registration)?;
        Ok(maps)
    }

    /// # Errors
    /// [`Error::Call`]; the rest is removed.
    pub fn remove(&self, process: u32, rings: u32) -> Result<(), Error> {
        // First: without this, programs look up none of the others.
        let mut done = vec![self.processes.remove(process)];
        done.extend((0..rings).map(|number| self.rings.remove([process, number])));
        done.push(self.slots.remove(process));
        let failed = done.into_iter().find_map(|done| done.err().filter(|e| *e != Errno::NOENT));
        failed.map_or(Ok(()), |e| Err(Error::Call("taking a process from BPF maps", e)))
    }

    /// # Errors
    /// [`Error::Call`].
    pub fn count(&self, why: Why) -> Result<u64, Error> {
        let mut value = 0u64;
        // SAFETY: the map was made with these types.
        let done = unsafe { call::get(self.counts.fd.as_fd(), why as u32, &mut value) };
        done.map(|()| value).map_err(|e| Error::Call("reading a count of a BPF program", e))
    }
}
