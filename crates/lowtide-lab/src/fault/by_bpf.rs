//! Faults told to the faulting thread by a signal that a BPF program sends; what can't be told so comes by rings.

use std::os::fd::AsFd;

use lowtide_bpf::record::{Fault, Record};
use lowtide_bpf::{Carrier, Error, MappedRing, MappedSlots, Notifier, ProcessMaps, Registration};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::signal;

/// The signal: one that nobody else sends.
pub const SIGNAL: i32 = libc::SIGSTKFLT;

/// The programs, and what they tell this process.
pub struct ByBpf {
    maps: ProcessMaps,
    slots: MappedSlots,
    carrier: Carrier,
    // Dropped last: until then faults are told.
    _notifier: Notifier,
}

impl ByBpf {
    /// With so many rings.
    ///
    /// # Errors
    /// A line: BPF programs can't be loaded here, and why.
    pub fn new(rings: usize) -> Result<ByBpf, String> {
        let text = |e: Error| e.to_string();
        let notifier = Notifier::load(SIGNAL).map_err(text)?;
        let registration = Registration::of_this_process(signal::handler(), signal::HANDLER_STACK, rings as u32);
        let maps = notifier.register(std::process::id(), registration).map_err(text)?;
        let slots = MappedSlots::new(maps.slots.as_fd()).map_err(text)?;
        Ok(ByBpf { maps, slots, carrier: notifier.carrier(), _notifier: notifier })
    }

    /// In the handler: what the signal is about. `None`: another thread's came meanwhile.
    pub fn fault(&self, info: &libc::siginfo_t, thread: u32) -> Option<Fault> {
        match self.carrier {
            // SAFETY: the kernel's signals of this kind have a value.
            Carrier::Value => Some(Fault::of_word(unsafe { info.si_value() }.sival_ptr as u64)),
            Carrier::Slot => self.slots.signalled(thread),
        }
    }

    /// The ring of a number, to be waited for.
    ///
    /// # Errors
    /// A line: it can't be mapped.
    pub fn waiter(&self, number: usize) -> Result<Waiter<'_>, String> {
        let fd = &self.maps.rings[number];
        let ring = MappedRing::new(fd.as_fd()).map_err(|e| e.to_string())?;
        Ok(Waiter { by_bpf: self, number, ring, lost: 0 })
    }
}

/// Who takes what a ring says.
pub struct Waiter<'a> {
    by_bpf: &'a ByBpf,
    number: usize,
    ring: MappedRing,
    lost: u64,
}

impl Waiter<'_> {
    /// Waits until the ring says something, or for `ms` milliseconds.
    pub fn wait(&self, ms: i32) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(ms) * 1_000_000 };
        let _ = poll(&mut [PollFd::new(&self.by_bpf.maps.rings[self.number], PollFlags::IN)], Some(&timeout));
    }

    /// What it says.
    pub fn take(&mut self) -> Option<Record> {
        self.ring.take()
    }

    /// Whether records found their ring full since this was asked: the userfaultfd has their faults.
    pub fn lost_some(&mut self) -> bool {
        let lost = self.by_bpf.slots.lost();
        std::mem::replace(&mut self.lost, lost) != lost
    }
}
