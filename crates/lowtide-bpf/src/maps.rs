//! The maps: those that only the loading process has, and those of each process, of which it has its own and no other's.
//!
//! | map | holds | who has it |
//! |---|---|---|
//! | processes | of each process: its handler, how much stack that takes, how many rings it has | who loads |
//! | rings | by process and number: a ring | who loads |
//! | slots | by process: its slots | who loads |
//! | counts | how often which fault went to a ring | who loads |
//! | a ring | records of faults of one process | who loads, that process |
//! | slots | of each thread of one process: its fault | who loads, that process |
//!
//! So a process reads and breaks nothing but its own: what it writes into its slots or into the position of its ring decides
//! only which of its own records come.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

use crate::call::{self, AS_NEEDED, MAPPABLE, MapKind, MapPlan, Plain};
use crate::error::Error;
use crate::record::Why;
use crate::ring::RING_BYTES;
use crate::slot::{SLOTS, Slot};

/// Most processes at a time.
const PROCESSES: u32 = 1 << 14;
/// Most rings at a time.
const RINGS: u32 = 1 << 16;

/// A process that is to be told of its faults.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Registration {
    /// The address of its handler: only while the signal has this one is it sent.
    pub handler: u64,
    /// Bytes of stack that the signal's frame and the handler take. 0: it is not asked whether there is room.
    pub stack: u64,
    /// How many seccomp filters it has (`Seccomp_filters` in its status): with another number the signal is not sent.
    pub filters: u32,
    /// Rings: that of a fault is the CPU's number modulo this. 1 to 1024.
    pub rings: u32,
    /// [`Stacks`], as a number.
    pub stacks: u64,
}

/// On which stacks threads get the signal, those that have an alternate one aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Stacks {
    /// On all where what its frame takes is in memory. What a program has made itself for a coroutine of its own may end above
    /// that, without a guard: then the frame is written over what lies there.
    Any,
    /// Only where there is room for certain: on the stack of the main thread, and on those of the C library's threads near their
    /// beginning.
    Known,
}

// SAFETY: three words of 8 bytes and two of 4, of any value.
unsafe impl Plain for Registration {}

impl Registration {
    /// Of a process whose handler is at this address and takes `stack` bytes beside the signal's frame; on any stack.
    pub fn new(handler: u64, stack: usize, filters: u32, rings: u32) -> Registration {
        // SAFETY: it takes a number. Frames are of one size on a machine.
        let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
        Registration { handler, stack: frame + stack as u64, filters, rings, stacks: Stacks::Any as u64 }
    }

    /// The same, on such stacks.
    pub fn on(self, stacks: Stacks) -> Registration {
        Registration { stacks: stacks as u64, ..self }
    }

    /// Of this process as it is now. `handler` is the address of its handler, which takes `stack` bytes beside the signal's
    /// frame.
    pub fn of_this_process(handler: usize, stack: usize, rings: u32) -> Registration {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let filters = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:")?.trim().parse().ok());
        Registration::new(handler as u64, stack, filters.unwrap_or(0), rings)
    }
}

/// What a process gets of its own: the programs write into no other process's.
#[derive(Debug)]
pub struct ProcessMaps {
    /// Its rings, by number. Each can be waited for (POLLIN), and mapped by [`crate::MappedRing`].
    pub rings: Vec<OwnedFd>,
    /// Its slots, mapped by [`crate::MappedSlots`].
    pub slots: OwnedFd,
}

/// A map with keys and values of these types.
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

    /// Its descriptor, for the instructions of a program.
    pub fn descriptor(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn set(&self, key: K, value: V) -> Result<(), Errno> {
        // SAFETY: it was made with these types.
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

/// The maps of the loading process.
#[derive(Debug)]
pub struct Maps {
    /// By process.
    pub processes: Map<u32, Registration>,
    /// By process and number.
    pub rings: Map<[u32; 2], RawFd>,
    /// By process.
    pub slots: Map<u32, RawFd>,
    /// By [`Why`].
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

    /// Gives a process its maps; from then on its faults are told.
    ///
    /// # Errors
    /// [`Error::Call`]: then nothing is left of it.
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
        // Last: where a program finds this, it finds the others.
        self.processes.set(process, registration)?;
        Ok(maps)
    }

    /// The programs know nothing of a process any more.
    ///
    /// # Errors
    /// [`Error::Call`]; what can be taken away is.
    pub fn remove(&self, process: u32, rings: u32) -> Result<(), Error> {
        // First: without this, a program looks for none of the others.
        let mut done = vec![self.processes.remove(process)];
        done.extend((0..rings).map(|number| self.rings.remove([process, number])));
        done.push(self.slots.remove(process));
        // What is not there need not go.
        let failed = done.into_iter().find_map(|done| done.err().filter(|e| *e != Errno::NOENT));
        failed.map_or(Ok(()), |e| Err(Error::Call("taking a process from BPF maps", e)))
    }

    /// How often it was so.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn count(&self, why: Why) -> Result<u64, Error> {
        let mut value = 0u64;
        // SAFETY: the map was made with these types.
        let done = unsafe { call::get(self.counts.fd.as_fd(), why as u32, &mut value) };
        done.map(|()| value).map_err(|e| Error::Call("reading a count of a BPF program", e))
    }
}
