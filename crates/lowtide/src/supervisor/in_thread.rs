//! Has the kernel tell threads of the run of their own faults (docs/design/in-thread.md): loads the BPF programs, for the first
//! process that asks or before the program starts, and registers processes. When this process ends, the kernel takes all of it
//! away, and faults go to handler threads.

use crate::host::privilege;
use crate::supervisor::ancestry;
use lowtide_bpf::record::Why;
use lowtide_bpf::{Notifier, Registration, SIGNAL};
use lowtide_pager::segment::FAULTS_BY_MONITORS;
use lowtide_pager::sys::broker::HANDLER_STACK;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// Rings of a process: its handler threads take from one.
const RINGS: u32 = 1;

/// The programs, and who is told.
pub struct InThread {
    /// One of the segment's `FAULTS_` values.
    faults: u32,
    notifier: Option<Notifier>,
    registered: Vec<Registered>,
}

struct Registered {
    pid: u32,
    process: OwnedFd,
}

/// Loads the programs; why that can't be, in one line.
pub fn load() -> Result<Notifier, String> {
    let loaded = privilege::with(privilege::TRACING, || Notifier::load(SIGNAL)).map_err(|error| error.to_string());
    // To read the kernel's types takes tens of megabytes, which the allocator would keep, and which count.
    // SAFETY: gives unused memory back.
    unsafe { libc::malloc_trim(0) };
    loaded
}

impl InThread {
    /// As the run was asked for: one of the segment's `FAULTS_` values.
    pub fn new(faults: u32) -> InThread {
        InThread { faults, notifier: None, registered: Vec::new() }
    }

    /// Loads the programs now; why that can't be, in one line.
    pub fn load(&mut self) -> Result<(), String> {
        self.notifier = Some(load()?);
        Ok(())
    }

    /// Registers a process, which has this pid and whose handler is there. The ring and the slots that are its own.
    ///
    /// # Errors
    /// `NOSYS`: nobody is told here.
    pub fn register(&mut self, pid: u32, process: &OwnedFd, handler: u64) -> Result<[OwnedFd; 2], Errno> {
        self.forget_dead();
        // What can't be loaded once can't be loaded again, and nobody else is to ask.
        if self.faults == FAULTS_BY_MONITORS || self.notifier.is_none() && self.load().is_err() {
            self.faults = FAULTS_BY_MONITORS;
            return Err(Errno::NOSYS);
        }
        let notifier = self.notifier.as_ref().ok_or(Errno::NOSYS)?;
        let process = process.try_clone().map_err(|_| Errno::MFILE)?;
        // Filters: none, as the process said of its main thread. Threads that have some are told nothing.
        let registration = Registration::new(handler, HANDLER_STACK, 0, RINGS);
        let maps = privilege::with(privilege::TRACING, || notifier.register(pid, registration)).map_err(|_| Errno::IO)?;
        self.registered.retain(|other| other.pid != pid);
        // What has ended meanwhile goes with the next one: nobody faults there.
        self.registered.push(Registered { pid, process });
        let ring = maps.rings.into_iter().next().ok_or(Errno::IO)?;
        Ok([ring, maps.slots])
    }

    /// How many faults and events were left to handler threads for each reason, in the order of [`Why::ALL`], and of these how
    /// many without a record ([`Why::Lost`], [`Why::Again`]); zeros where no thread is told.
    pub fn counts(&self) -> [u64; Why::ALL.len()] {
        let Some(notifier) = &self.notifier else { return [0; Why::ALL.len()] };
        privilege::with(privilege::TRACING, || Why::ALL.map(|why| notifier.count(why).unwrap_or(0)))
    }

    /// Processes that have ended are not registered any more: others may get their numbers.
    fn forget_dead(&mut self) {
        let Some(notifier) = &self.notifier else { return };
        self.registered.retain(|registered| {
            let lives = ancestry::is_alive(&registered.process);
            if !lives {
                let _ = privilege::with(privilege::TRACING, || notifier.unregister(registered.pid));
            }
            lives
        });
    }
}
