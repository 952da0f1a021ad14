//! What a monitor does: reads messages, applies events, serves faults. Where there are threads to do it, and on which CPUs, is the
//! affair of the process (`lowtide-agent`'s monitor.rs).
//!
//! While an event waits, the kernel refuses to install pages, and reports all faults before the event. Faults are put aside then without
//! trying, nobody is woken for nothing (the thread would fault again), and they are served when the event has been read.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use rustix::io::Errno;

use crate::clock::now_ns;
use crate::events::Read;
use crate::evict::Evicted;
use crate::fault::Served;
use crate::pager::{Pager, Worker, add};
use crate::segment::latency_bucket;

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
                        Served::Done => turn.thread = Some(thread),
                    }
                    break;
                }
                // To serve it in vain would only keep the event waiting.
                Read::Fault(addr, _) => {
                    if self.deferred.try_push(addr).is_err() {
                        pager.uffd().wake(addr, 4096);
                    }
                }
            }
        }
        let mut served = 0;
        while let Some(&addr) = self.deferred.get(served)
            && self.serve(pager, addr) == Served::Done
        {
            served += 1;
        }
        self.deferred.drain(..served);
        turn
    }

    /// Serves a fault, at the limit after some memory has been freed for it, and counts how long that took.
    fn serve(&mut self, pager: &Pager, addr: usize) -> Served {
        let start = now_ns();
        let (proc, counters) = (pager.proc(), pager.counters());
        if (pager.budget.at_limit() || pager.budget.is_coming_down())
            && pager.evict_for_fault(&mut self.worker) == Evicted::Some
        {
            counters.evictions_direct.fetch_add(1, Ordering::Relaxed);
        }
        let served = pager.serve(addr, &mut self.worker);
        // Before the thread is woken, which may run in place of this one from then on.
        let took = now_ns() - start;
        proc.latency[latency_bucket(took)].fetch_add(1, Ordering::Relaxed);
        counters.stall_some_us.fetch_add(took / 1000, Ordering::Relaxed);
        counters.latency_max_ns.fetch_max(took, Ordering::Relaxed);
        pager.stage_ahead(&mut self.worker);
        self.worker.wake(pager.uffd());
        served
    }
}
