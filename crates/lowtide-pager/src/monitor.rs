//! What a monitor does: reads messages, applies events, serves faults. Where there are threads to do it, and on which CPUs, is the
//! affair of the process (`lowtide-agent`'s monitor.rs).
//!
//! While an event waits, the kernel refuses to install pages, and reports all faults before the event. Faults are put aside then without
//! trying, nobody is woken for nothing (the thread would fault again), and they are served when the event has been read.

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::clock::now_ns;
use crate::events::Fault;
use crate::fault::Served;
use crate::pager::{Pager, Worker, add};
use crate::uffd::MOST_READ;

/// Faults kept until a waiting event has been read; more are sent back to the kernel, which reports them again.
const DEFERRED: usize = 1024;
/// What was read together is served together for so long, in nanoseconds. With pages in the pool that is some ten faults.
const PROMPT_NS: u64 = 50_000;

/// One monitor.
pub struct Monitor {
    worker: Worker,
    deferred: ArrayVec<usize, DEFERRED>,
    /// How many messages to read at a time: fewer when faults take long.
    most: usize,
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
        Ok(Monitor { worker: Worker::new(false)?, deferred: ArrayVec::new(), most: 1 })
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

    /// Deals with what there is: faults, or events up to the next fault. It does not wait for anything to come: under load the next fault is
    /// there when this one's thread has run. No lock may be held.
    pub fn turn(&mut self, pager: &Pager) -> Turn {
        let mut turn = Turn::default();
        loop {
            let read = pager.read(self.most, &mut self.worker);
            if read.is_empty() {
                break;
            }
            turn.read = true;
            turn.remapped |= read.remapped;
            if self.deferred.is_empty() && !read.faults.is_empty() {
                turn.thread = self.serve_all(pager, &read.faults);
                break;
            }
            // To serve them in vain would only keep the event waiting.
            for fault in read.faults {
                self.defer(pager, fault.addr);
            }
        }
        if self.has_deferred() {
            self.serve_deferred(pager);
        }
        turn
    }

    /// Serves faults that were read together, and wakes their threads together: to change threads costs more than to bring in a page. None that
    /// may take long keeps another waiting: such a one is served alone, and what would have to wait for it is sent back to the kernel, which
    /// tells the next monitor of it. Returns the thread of one that was served.
    fn serve_all(&mut self, pager: &Pager, faults: &[Fault]) -> Option<u32> {
        let started = now_ns();
        let mut served = None;
        let mut slow = None;
        let mut late = false;
        for fault in faults {
            if late || (faults.len() > 1 && pager.is_slow(fault.addr)) {
                match slow {
                    None => slow = Some(fault),
                    Some(_) => pager.uffd().wake(fault.addr, PAGE_SIZE),
                }
                continue;
            }
            match self.serve(pager, fault.addr, started) {
                Served::EventsFirst => self.defer(pager, fault.addr),
                Served::Done | Served::Lost => served = Some(fault.thread),
            }
            late = now_ns() - started > PROMPT_NS;
        }
        self.let_run(pager);
        if let Some(fault) = slow {
            match self.serve(pager, fault.addr, now_ns()) {
                Served::EventsFirst => self.defer(pager, fault.addr),
                Served::Done | Served::Lost => served = Some(fault.thread),
            }
            self.let_run(pager);
        }
        self.most = if late || slow.is_some() { 1 } else { (self.most * 2).min(MOST_READ) };
        served
    }

    /// Puts a fault aside until an event has been read.
    fn defer(&mut self, pager: &Pager, addr: usize) {
        if self.deferred.try_push(addr).is_err() {
            pager.uffd().wake(addr, PAGE_SIZE);
        }
    }

    fn serve_deferred(&mut self, pager: &Pager) {
        let mut served = 0;
        while let Some(&addr) = self.deferred.get(served)
            && self.serve(pager, addr, now_ns()) != Served::EventsFirst
        {
            self.let_run(pager);
            served += 1;
        }
        self.worker.wake(pager.uffd());
        self.deferred.drain(..served);
    }

    /// Serves a fault that was read at `start`. Its thread still waits, unless its page is lost.
    fn serve(&mut self, pager: &Pager, addr: usize, start: u64) -> Served {
        let served = pager.serve_within_limit(addr, start, &mut self.worker);
        // Without poison (Linux before 6.6) it faults again, and this is tried again.
        if served == Served::Lost && pager.uffd().poison(addr, PAGE_SIZE).is_err() {
            pager.uffd().wake(addr, PAGE_SIZE);
        }
        served
    }

    /// The threads run on whose pages have come, after pages were detached for the keeper, if it is time.
    fn let_run(&mut self, pager: &Pager) {
        pager.stage_ahead(&mut self.worker);
        self.worker.wake(pager.uffd());
    }
}
