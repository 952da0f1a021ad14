//! Both programs and the maps together: what tells threads and processes of their faults.

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

/// How a program is run at the entry of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// As a part of the entry (fentry).
    Entry,
    /// By a probe (kprobe): slower, where the other way is not built into the kernel.
    Probe,
}

/// How a signal says which fault it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// In its value (`si_value`), as [`crate::record::Fault::of_word`] reads it: Linux 6.13 and later.
    Value,
    /// In the thread's slot: [`crate::slot::Slots::signalled`].
    Slot,
}

/// Ways to load the programs, the fastest first.
pub const WAYS: [(Hook, Carrier); 3] =
    [(Hook::Entry, Carrier::Value), (Hook::Entry, Carrier::Slot), (Hook::Probe, Carrier::Slot)];

/// The number of the first PID namespace's file, the same on all kernels.
const FIRST_NAMESPACE: u64 = 0xeffffffc;

/// As far as that can be seen.
fn is_in_first_namespace() -> bool {
    !std::fs::metadata("/proc/self/ns/pid").is_ok_and(|file| file.st_ino() != FIRST_NAMESPACE)
}

/// For the tests of the whole, which show what each check is for: the reason, by its name, for which no fault goes to a ring.
fn without() -> Option<Why> {
    #[cfg(feature = "faults")]
    if let Ok(name) = std::env::var("LOWTIDE_WITHOUT") {
        let found = Why::ALL.into_iter().find(|why| why.name() == name);
        return Some(found.unwrap_or_else(|| panic!("LOWTIDE_WITHOUT={name}: no such reason")));
    }
    None
}

/// The programs, attached until this is dropped. Whose faults they tell is up to [`Notifier::register`].
#[derive(Debug)]
pub struct Notifier {
    // In this order: no program runs any more when the maps go.
    _fault: Attached,
    _event: Attached,
    maps: Maps,
    hook: Hook,
    carrier: Carrier,
    /// Registered processes, and how many rings each has.
    processes: Mutex<HashMap<u32, u32>>,
}

impl Notifier {
    /// Whether [`Notifier::load`] is worth trying, in three system calls, where `load` reads megabytes: whether this process may
    /// load programs of the kind that it loads first. It takes the same privileges.
    pub fn may_load() -> bool {
        if std::fs::metadata(btf::PATH).is_err() || !is_in_first_namespace() {
            return false;
        }
        let mut nothing = Assembler::default();
        nothing.exit();
        let nothing = nothing.finish().unwrap_or_default();
        // The first type is no function: who may load such programs is told that instead. To ask for one that could be loaded
        // would be to look for it.
        let asked = call::load_program(ProgramKind::Function(1), "lowtide_nothing", &nothing, &mut []);
        !matches!(asked, Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS))
    }

    /// Loads the programs in the first way that this kernel takes. `signal` is 1 to 31; it takes CAP_BPF and CAP_PERFMON.
    ///
    /// # Errors
    /// Why the last way, or all of them, can't be gone here.
    pub fn load(signal: i32) -> Result<Notifier, Error> {
        Notifier::load_by(signal, &WAYS)
    }

    /// As [`Notifier::load`], in the first of these ways.
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
                // What is not allowed once is not allowed otherwise.
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
        // Events first: from the other on, nobody need look for them.
        let event = Attached::new(emit::event(target), "lowtide_event", events, hook)?;
        let fault = Attached::new(emit::fault(target), "lowtide_fault", faults, hook)?;
        Ok(Notifier { _fault: fault, _event: event, maps, hook, carrier, processes: Mutex::default() })
    }

    /// How the programs are run.
    pub fn hook(&self) -> Hook {
        self.hook
    }

    /// How signals say which fault they are about.
    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Has a process told of its faults from now on, until [`Notifier::unregister`]: its threads by the signal, and what is left
    /// by the rings that this returns, which are for that process alone. All of its userfaultfds are meant. Its rings must be
    /// waited for: the userfaultfd need not be polled any more.
    ///
    /// `process` is its number in the first PID namespace. Registered once more, it gets new maps.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn register(&self, process: u32, registration: Registration) -> Result<ProcessMaps, Error> {
        self.unregister(process)?;
        let maps = self.maps.add(process, registration)?;
        self.lock().insert(process, registration.rings);
        Ok(maps)
    }

    /// Nothing is said any more of the faults of a process, which is to be called when it has ended at the latest.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn unregister(&self, process: u32) -> Result<(), Error> {
        let rings = self.lock().remove(&process);
        rings.map_or(Ok(()), |rings| self.maps.remove(process, rings))
    }

    /// How often a fault of whichever process went to a ring for this reason, or a record was not written.
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
