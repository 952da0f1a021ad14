//! Both programs with the maps: they report faults to threads and processes.

use std::collections::HashMap;
use std::os::linux::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use crate::assembler::Assembler;
use crate::btf;
use crate::call::{self, ProgramKind};
use crate::emit::{self, Descriptors, Target};
use crate::error::Error;
use crate::kernel::Kernel;
use crate::maps::{Maps, ProcessMaps, Registration};
use crate::program::{Attached, Function};
use crate::record::Why;

/// How a program runs at a function's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// In the entry itself (fentry).
    Entry,
    /// By a probe (kprobe): slower, for kernels without the other way.
    Probe,
}

/// How a signal tells its fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// In its value (`si_value`): Linux 6.13 and later; see [`crate::record::Fault::of_word`].
    Value,
    /// In the thread's slot: [`crate::slot::Slots::signalled`].
    Slot,
}

/// Ways to load the programs, fastest first.
pub const WAYS: [(Hook, Carrier); 3] =
    [(Hook::Entry, Carrier::Value), (Hook::Entry, Carrier::Slot), (Hook::Probe, Carrier::Slot)];

/// The inode of the first PID namespace on all kernels.
const FIRST_NAMESPACE: u64 = 0xeffffffc;

/// True if unknown.
fn is_in_first_namespace() -> bool {
    !std::fs::metadata("/proc/self/ns/pid").is_ok_and(|file| file.st_ino() != FIRST_NAMESPACE)
}

/// For tests: the reason whose check is left out.
fn without() -> Option<Why> {
    #[cfg(feature = "faults")]
    if let Ok(name) = std::env::var("LOWTIDE_WITHOUT") {
        let found = Why::ALL.into_iter().find(|why| why.name() == name);
        return Some(found.unwrap_or_else(|| panic!("LOWTIDE_WITHOUT={name}: no such reason")));
    }
    None
}

/// The programs, attached until this is dropped; for processes of [`Notifier::register`].
#[derive(Debug)]
pub struct Notifier {
    // Dropped in this order: the programs stop before the maps go.
    _fault: Attached,
    _event: Attached,
    maps: Maps,
    hook: Hook,
    carrier: Carrier,
    processes: Mutex<HashMap<u32, u32>>,
}

impl Notifier {
    /// Whether this process may load programs, in three system calls, while [`Notifier::load`]
    /// reads megabytes.
    pub fn may_load() -> bool {
        if std::fs::metadata(btf::PATH).is_err() || !is_in_first_namespace() {
            return false;
        }
        let mut nothing = Assembler::default();
        nothing.exit();
        let nothing = nothing.finish().unwrap_or_default();
        // Type 1 is no function: a privileged process gets that error. A loadable request would
        // need a search.
        let asked = call::load_program(ProgramKind::Function(1), "lowtide_nothing", &nothing, &mut []);
        !matches!(asked, Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS))
    }

    /// Loads the programs in the first way that works. `signal` is 1 to 31; needs CAP_BPF and
    /// CAP_PERFMON.
    ///
    /// # Errors
    /// Why the last way, or all of them, failed.
    pub fn load(signal: i32) -> Result<Notifier, Error> {
        Notifier::load_by(signal, &WAYS)
    }

    /// [`Notifier::load`] with a choice of ways.
    ///
    /// # Errors
    /// As [`Notifier::load`].
    pub fn load_by(signal: i32, ways: &[(Hook, Carrier)]) -> Result<Notifier, Error> {
        assert!((1..=31).contains(&signal), "a signal without a queue");
        if !is_in_first_namespace() {
            return Err(Error::Namespace);
        }
        let kernel = Kernel::running()?;
        let mut why = Error::Missing("function bpf_send_signal_task".to_owned());
        for &(hook, carrier) in ways {
            if carrier == Carrier::Value && kernel.send_function.is_none() {
                continue;
            }
            match Notifier::attach(&kernel, signal, hook, carrier) {
                Err(e @ Error::NotAllowed(..)) => return Err(e),
                Err(e) => why = e,
                done => return done,
            }
        }
        Err(why)
    }

    fn attach(kernel: &Kernel, signal: i32, hook: Hook, carrier: Carrier) -> Result<Notifier, Error> {
        let maps = Maps::new()?;
        let descriptors = Descriptors {
            processes: maps.processes.descriptor(),
            rings: maps.rings.descriptor(),
            slots: maps.slots.descriptor(),
            counts: maps.counts.descriptor(),
        };
        let target = Target { kernel, maps: descriptors, hook, carrier, signal, without: without() };
        let faults = Function { name: c"handle_userfault", id: kernel.fault_function };
        let events = Function { name: c"userfaultfd_event_wait_completion", id: kernel.event_function };
        // Events first: once faults are reported, no thread needs to look for events.
        let event = Attached::new(emit::event(target), "lowtide_event", events, hook)?;
        let fault = Attached::new(emit::fault(target), "lowtide_fault", faults, hook)?;
        Ok(Notifier { _fault: fault, _event: event, maps, hook, carrier, processes: Mutex::default() })
    }

    /// How the programs run.
    pub fn hook(&self) -> Hook {
        self.hook
    }

    /// How signals tell their fault.
    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Reports a process's faults until [`Notifier::unregister`]: to its threads by the signal, the
    /// rest by the returned rings, for that process alone. It must wait at its rings instead of
    /// polling its userfaultfds.
    ///
    /// `process` is its id in the first PID namespace. A second call gives it new maps.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn register(&self, process: u32, registration: Registration) -> Result<ProcessMaps, Error> {
        self.unregister(process)?;
        let maps = self.maps.add(process, registration)?;
        self.lock().insert(process, registration.rings);
        Ok(maps)
    }

    /// Ends the reports for a process; due at the latest when it has ended.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn unregister(&self, process: u32) -> Result<(), Error> {
        let rings = self.lock().remove(&process);
        rings.map_or(Ok(()), |rings| self.maps.remove(process, rings))
    }

    /// Faults of all processes that went to a ring for this reason, or records not written.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn count(&self, why: Why) -> Result<u64, Error> {
        self.maps.count(why)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, u32>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
