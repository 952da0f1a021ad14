//! What a monitor does: reads messages, applies events, serves faults. Where there are threads to do it, and on which CPUs, is
//! the affair of the process (`lowtide-agent`'s monitor.rs).
//!
//! While an event waits, the kernel refuses to install pages, and reports all faults before the event. Faults are put aside
//! then without trying, nobody is woken for nothing (the thread would fault again), and they are served when the event has been
//! read.

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;
use rustix::thread::Timespec;

use crate::fault::Served;
use crate::fault::worker::{Fault, Worker};
use crate::pager::{Pager, add};
use crate::sys::clock::{now_ns, timeout};
use crate::sys::uffd::{Access, MOST_READ};

/// Faults kept until a waiting event has been read; more are sent back to the kernel, which reports them again.
const DEFERRED: usize = 1024;
/// A call that is reported keeps pages from being installed until its thread has run again: some 50 us from when its event was
/// read, which nothing tells. So whoever has faults put aside looks again after this many microseconds, ...
const NAP_US: u32 = 30;
/// ... and after so many looks in vain at the pace of other waits: what takes longer is a large munmap.
const NAPS: u32 = 16;
/// A fault that is put aside for as long may be in a call that waits for itself: after as many nanoseconds that is looked at.
const STUCK_NS: u64 = 20_000_000;
/// After as long it is asked whether there is any such call.
const HOPELESS_NS: u64 = 5_000_000_000;
/// And after as long that is not asked any more.
const LOST_NS: u64 = 600_000_000_000;
/// For how long who waits for ever, or as long, keeps what it does not need for that: most of its buffer, and zstd's compressor,
/// up to a megabyte. (Others wait for a millisecond, and then sleep until they are called.)
const REST_MS: i32 = 20;
/// While another thread lets go of what was dropped: that one may come to wait for something, and then another goes on.
const GOING_MS: i32 = 20;
/// A thread whose page has come waits for this long for others that were read with it, in nanoseconds. With pages in the pool
/// that is some ten faults.
const PROMPT_NS: u64 = 50_000;

/// One monitor.
pub struct Monitor {
    worker: Worker,
    deferred: ArrayVec<Fault, DEFERRED>,
    /// When the first of them was read, in nanoseconds.
    deferred_since: u64,
    /// When they were last looked at, in nanoseconds.
    looked_ns: u64,
    /// Naps since one of them was served.
    naps: u32,
    /// How many messages to read at a time: one after a fault that took long. (To ask for more than there are costs nothing
    /// that could be measured.)
    most: usize,
}

/// What came of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    /// The mappings changed in a way that new ones may have to be looked for.
    pub remapped: bool,
    /// Something was read: an event or a fault.
    pub read: bool,
    /// One of the threads whose faults were served.
    pub thread: Option<u32>,
    /// How many there were.
    pub threads: usize,
}

impl Monitor {
    /// A monitor with nothing put aside.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new() -> Result<Monitor, Errno> {
        Ok(Monitor {
            worker: Worker::new(false)?,
            deferred: ArrayVec::new(),
            deferred_since: 0,
            looked_ns: 0,
            naps: 0,
            most: 1,
        })
    }

    /// Waits for a message, `ms` milliseconds at most (negative: for ever), and not as long where faults are put aside. No lock
    /// may be held.
    pub fn wait(&mut self, pager: &Pager, ms: i32) {
        self.wait_by(pager, ms, |time| pager.uffd().wait_readable_for(time));
    }

    /// The same by `wait`, which is told how long at most (`None`: for ever) and says whether something came.
    pub fn wait_by(&mut self, pager: &Pager, ms: i32, wait: impl FnOnce(Option<&Timespec>) -> bool) {
        if self.has_deferred() && self.naps < NAPS {
            self.naps += 1;
            wait(Some(&Timespec { tv_sec: 0, tv_nsec: i64::from(NAP_US) * 1000 }));
        } else {
            let is_calm = !self.has_deferred() && pager.order.lock().is_all_certain() && !pager.hold.is_owed();
            let can_rest = self.worker.can_rest();
            let ms = if !is_calm {
                1
            } else if pager.going.is_on() && !(0..GOING_MS).contains(&ms) {
                GOING_MS
            } else if can_rest && ms < 0 {
                REST_MS
            } else {
                ms
            };
            if !wait(timeout(ms).as_ref()) && can_rest && ms >= REST_MS {
                self.rests();
            }
        }
        add(&pager.counters().monitor_wakeups, 1);
    }

    /// It has nothing to do for a while: it takes less memory until then.
    pub fn rests(&mut self) {
        self.worker.rests();
    }

    /// Whether what waits to be read from the userfaultfd is needed for something that is not done: faults are put aside, an
    /// event's place in the order is not certain, a thread that forks is held, or a removal goes on.
    pub fn wants_to_read(&self, pager: &Pager) -> bool {
        self.has_deferred() || pager.going.is_on() || pager.hold.is_owed() || !pager.order.lock().is_all_certain()
    }

    /// Whether it has faults in hand that nobody else knows of.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Deals with what there is: some faults, or events up to the next faults. It does not wait for anything to come: under
    /// load the next fault is there when this one's thread has run. No lock may be held.
    pub fn turn(&mut self, pager: &Pager) -> Turn {
        let mut turn = Turn::default();
        self.read(pager, false, &mut turn);
        self.serve_deferred(pager);
        turn
    }

    /// The same where faults are told otherwise: that of `told`, which was not read from the userfaultfd, and first. `reads`: all
    /// that waits there is read, too.
    pub fn turn_with(&mut self, pager: &Pager, told: Option<Fault>, reads: bool) -> Turn {
        let mut turn = Turn::default();
        if let Some(fault) = told {
            turn.read = true;
            self.take(pager, &[fault], &mut turn);
        }
        if reads {
            self.read(pager, true, &mut turn);
        }
        self.serve_deferred(pager);
        turn
    }

    /// Reads what there is, `all` or up to the first faults that can be served, and serves them.
    fn read(&mut self, pager: &Pager, all: bool, turn: &mut Turn) {
        loop {
            let mut read = pager.read(self.most, &mut self.worker);
            turn.read |= read.goes_on;
            if read.is_empty() {
                break;
            }
            turn.read = true;
            turn.remapped |= read.remapped;
            if let Some(child) = read.child.take() {
                // Others serve them meanwhile.
                for fault in self.deferred.drain(..).chain(read.faults) {
                    pager.uffd().wake(fault.addr, PAGE_SIZE);
                }
                pager.forked(child, &mut self.worker);
                continue;
            }
            if self.take(pager, &read.faults, turn) && !all {
                break;
            }
        }
    }

    /// Serves faults, if none are put aside; else, or if an event waits, puts them aside. True: all were served.
    fn take(&mut self, pager: &Pager, faults: &[Fault], turn: &mut Turn) -> bool {
        if faults.is_empty() {
            return false;
        }
        if self.deferred.is_empty() {
            turn.threads = faults.len();
            turn.thread = self.serve_all(pager, faults);
            return self.deferred.is_empty();
        }
        // To serve them in vain would only keep the event waiting.
        for fault in faults {
            self.defer(pager, *fault, now_ns());
        }
        false
    }

    /// Serves faults that were read together, and wakes their threads together: to change threads costs more than to bring in a
    /// page. A fault that may take long keeps no other waiting ([`Worker::is_about_to_wait`]). Returns the thread of one that
    /// was served.
    fn serve_all(&mut self, pager: &Pager, faults: &[Fault]) -> Option<u32> {
        let read_at = now_ns();
        let mut unwoken_since = read_at;
        let mut served = None;
        self.worker.take_in_hand(faults);
        let mut threads = faults.iter().map(|fault| fault.thread);
        while let Some(fault) = self.worker.next_in_hand() {
            if self.serve(pager, fault, read_at) == Served::EventsFirst {
                self.defer(pager, fault, read_at);
                while let Some(fault) = self.worker.next_in_hand() {
                    self.defer(pager, fault, read_at);
                }
                break;
            }
            served = threads.next();
            let now = now_ns();
            if now - unwoken_since > PROMPT_NS {
                self.worker.wake(pager.uffd());
                unwoken_since = now;
            }
        }
        self.let_run(pager);
        self.most = if self.worker.has_waited() { 1 } else { (self.most * 2).min(MOST_READ) };
        served
    }

    /// Brings in the page at `addr`, for which no thread waits, if it can be done at once: if not, whoever needs it says so.
    pub fn bring_in(&mut self, pager: &Pager, addr: usize) {
        let _ = pager.serve_within_limit(addr & !(PAGE_SIZE - 1), Access::Write, now_ns(), &mut self.worker);
        self.worker.wake(pager.uffd());
    }

    /// Puts a fault that was read at `read_at` aside until an event has been read, and the call that caused it is over.
    fn defer(&mut self, pager: &Pager, fault: Fault, read_at: u64) {
        if self.deferred.is_empty() {
            (self.deferred_since, self.looked_ns) = (read_at, read_at);
        }
        if self.deferred.try_push(fault).is_err() {
            pager.uffd().wake(fault.addr, PAGE_SIZE);
        }
    }

    fn serve_deferred(&mut self, pager: &Pager) {
        let mut served = 0;
        while let Some(&fault) = self.deferred.get(served)
            && self.serve(pager, fault, self.deferred_since) != Served::EventsFirst
        {
            self.let_run(pager);
            served += 1;
        }
        self.worker.wake(pager.uffd());
        self.deferred.drain(..served);
        if served > 0 {
            self.naps = 0;
        } else if self.has_deferred() && now_ns().saturating_sub(self.looked_ns) > STUCK_NS {
            self.looked_ns = now_ns();
            self.deferred.iter().for_each(|fault| pager.let_grow(*fault));
            if self.looked_ns.saturating_sub(self.deferred_since) > HOPELESS_NS {
                pager.must_be_changing(self.looked_ns.saturating_sub(self.deferred_since) > LOST_NS);
            }
        }
    }

    /// Serves a fault that was read at `read_at`. Its thread still waits, unless its page is lost.
    fn serve(&mut self, pager: &Pager, fault: Fault, read_at: u64) -> Served {
        let served = pager.serve_within_limit(fault.addr, fault.access, read_at, &mut self.worker);
        // Without poison (Linux before 6.6) it faults again, and this is tried again.
        if served == Served::Lost && pager.uffd().poison(fault.addr, PAGE_SIZE).is_err() {
            pager.uffd().wake(fault.addr, PAGE_SIZE);
        }
        served
    }

    /// The threads run on whose pages have come, after pages were detached for the reclaimer, if it is time.
    fn let_run(&mut self, pager: &Pager) {
        pager.stage_ahead(&mut self.worker);
        self.worker.wake(pager.uffd());
    }
}
