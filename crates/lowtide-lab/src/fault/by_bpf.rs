//! Faults delivered to the faulting thread by a BPF program's signal; rings carry the others.

use std::os::fd::AsFd;

use lowtide_bpf::record::{Fault, Record};
use lowtide_bpf::{Carrier, Error, MappedRing, MappedSlots, Notifier, ProcessMaps, Registration};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::signal;

/// No other code sends this signal.
pub const SIGNAL: i32 = libc::SIGSTKFLT;

/// The programs, and their messages to this process.
pub struct ByBpf {
    maps: ProcessMaps,
    slots: MappedSlots,
    carrier: Carrier,
    // Dropped last: until then faults are delivered.
    _notifier: Notifier,
}

impl ByBpf {
    /// With this many rings.
    ///
    /// # Errors
    /// A line: why BPF programs can't be loaded here.
    pub fn new(rings: usize) -> Result<ByBpf, String> {
        let text = |e: Error| e.to_string();
        let notifier = Notifier::load(SIGNAL).map_err(text)?;
        let registration = Registration::of_this_process(signal::handler(), signal::HANDLER_STACK, rings as u32);
        let maps = notifier.register(std::process::id(), registration).map_err(text)?;
        let slots = MappedSlots::new(maps.slots.as_fd()).map_err(text)?;
        Ok(ByBpf { maps, slots, carrier: notifier.carrier(), _notifier: notifier })
    }

    /// In the handler: the signal's fault. `None`: another thread's signal overwrote it.
    pub fn fault(&self, info: &libc::siginfo_t, thread: u32) -> Option<Fault> {
        match self.carrier {
            // SAFETY: the kernel's signals of this kind have a value.
            Carrier::Value => Some(Fault::of_word(unsafe { info.si_value() }.sival_ptr as u64)),
            Carrier::Slot => self.slots.signalled(thread),
        }
    }

    /// A ring, to be waited for.
    ///
    /// # Errors
    /// A line: it can't be mapped.
    pub fn waiter(&self, number: usize) -> Result<Waiter<'_>, String> {
        let fd = &self.maps.rings[number];
        let ring = MappedRing::new(fd.as_fd()).map_err(|e| e.to_string())?;
        Ok(Waiter { by_bpf: self, number, ring, lost: 0 })
    }
}

pub struct Waiter<'a> {
    by_bpf: &'a ByBpf,
    number: usize,
    ring: MappedRing,
    lost: u64,
}

impl Waiter<'_> {
    /// Waits for a record, or for `ms` milliseconds.
    pub fn wait(&self, ms: i32) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(ms) * 1_000_000 };
        let _ = poll(&mut [PollFd::new(&self.by_bpf.maps.rings[self.number], PollFlags::IN)], Some(&timeout));
    }

    pub fn take(&mut self) -> Option<Record> {
        self.ring.take()
    }

    /// Whether records were lost to a full ring since the last call: their faults are at the
    /// userfaultfd.
    pub fn lost_some(&mut self) -> bool {
        let lost = self.by_bpf.slots.lost();
        std::mem::replace(&mut self.lost, lost) != lost
    }
}
