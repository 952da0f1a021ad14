//! What a monitor does: reads messages, applies events, serves faults. Where there are threads to do it, and on which CPUs, is the
//! affair of the process (`lowtide-agent`'s monitor.rs).
//!
//! While an event waits, the kernel refuses to install pages, and reports all faults before the event. Faults are put aside then without
//! trying, nobody is woken for nothing (the thread would fault again), and they are served when the event has been read.

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::events::Read;
use crate::fault::Served;
use crate::pager::{Pager, Worker, add};

/// Faults kept until a waiting event has been read; more are sent back to the kernel, which reports them again.
const DEFERRED: usize = 1024;

/// One monitor.
pub struct Monitor {
    worker: Worker,
    deferred: ArrayVec<usize, DEFERRED>,
}

/// What came of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    /// The mappings changed in a way that new ones may have to be looked for.
    pub remapped: bool,
    /// Something was read: an event or a fault.
    pub read: bool,
    /// The thread whose fault was served.
    pub thread: Option<u32>,
}

impl Monitor {
    /// A monitor with nothing put aside.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new() -> Result<Monitor, Errno> {
        Ok(Monitor { worker: Worker::new(false)?, deferred: ArrayVec::new() })
    }

    /// Waits for a message, `ms` milliseconds at most (negative: for ever). No lock may be held.
    pub fn wait(&self, pager: &Pager, ms: i32) {
        pager.uffd().wait_readable(if self.deferred.is_empty() { ms } else { 1 });
        add(&pager.counters().monitor_wakeups, 1);
    }

    /// Whether it has faults in hand that nobody else knows of.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Deals with what there is: a fault, or events up to the next fault. It does not wait for anything to come: under load the next fault is
    /// there when this one's thread has run. No lock may be held.
    pub fn turn(&mut self, pager: &Pager) -> Turn {
        let mut turn = Turn::default();
        loop {
            let read = pager.read(&mut self.worker);
            turn.read |= !matches!(read, Read::Nothing);
            match read {
                Read::Nothing => break,
                Read::Event => {}
                Read::Remapped => turn.remapped = true,
                Read::Fault(addr, thread) if self.deferred.is_empty() => {
                    match self.serve(pager, addr) {
                        Served::EventsFirst => self.deferred.push(addr),
                        Served::Done | Served::Lost => turn.thread = Some(thread),
                    }
                    break;
                }
                // To serve it in vain would only keep the event waiting.
                Read::Fault(addr, _) => {
                    if self.deferred.try_push(addr).is_err() {
                        pager.uffd().wake(addr, PAGE_SIZE);
                    }
                }
            }
        }
        let mut served = 0;
        while let Some(&addr) = self.deferred.get(served)
            && self.serve(pager, addr) != Served::EventsFirst
        {
            served += 1;
        }
        self.deferred.drain(..served);
        turn
    }

    /// Serves a fault, and lets the thread run on.
    fn serve(&mut self, pager: &Pager, addr: usize) -> Served {
        let served = pager.serve_within_limit(addr, &mut self.worker);
        // Without poison (Linux before 6.6) it faults again, and this is tried again.
        if served == Served::Lost && pager.uffd().poison(addr, PAGE_SIZE).is_err() {
            pager.uffd().wake(addr, PAGE_SIZE);
        }
        self.worker.wake(pager.uffd());
        served
    }
}
