//! A handler reads messages, applies events and serves faults, on threads and CPUs that `handlers/`
//! in `lowtide-agent` chooses.
//!
//! While an event waits, the kernel installs no page, and reports faults before the event. So the
//! handler puts faults aside, without waking their threads (they would fault again), until the
//! event was read.

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::clock::{now_ns, timeout};
use lowtide_sys::uffd::{Access, MOST_READ};
use lowtide_wire::segment::add;
use rustix::io::Errno;
use rustix::thread::Timespec;

use crate::fault::Served;
use crate::pager::Pager;
use crate::pages::worker::{Fault, Rights, Worker};

/// Faults put aside; the kernel keeps reporting more.
const DEFERRED: usize = 1024;
/// Microseconds: a reported call blocks installation until its thread has run, some 50 us after its
/// event was read.
const NAP_US: u32 = 30;
const NAPS: u32 = 16;
/// After this, a deferred fault may be in a call that waits for itself; ...
const STUCK_NS: u64 = 20_000_000;
/// ... after this, the host looks whether any such call exists; ...
const HOPELESS_NS: u64 = 5_000_000_000;
/// ... after this, the run ends without that look.
const LOST_NS: u64 = 600_000_000_000;
/// After this idle time most of the buffer and zstd's compressor (up to a megabyte) are freed.
const REST_MS: i32 = 20;
const GOING_MS: i32 = 20;
/// A served thread waits this long for its batch: some ten faults from the pool.
const PROMPT_NS: u64 = 50_000;

/// One fault handler.
pub struct Handler {
    worker: Worker,
    deferred: ArrayVec<Fault, DEFERRED>,
    deferred_since: u64,
    looked_ns: u64,
    naps: u32,
    /// 1 after a slow fault. (Asking for more costs nothing measurable.)
    most: usize,
}

/// What a turn has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    /// Mappings changed, so new ones may exist.
    pub remapped: bool,
    /// It read an event or a fault.
    pub read: bool,
    /// One of the threads whose faults were served.
    pub thread: Option<u32>,
    /// How many there were.
    pub threads: usize,
}

impl Handler {
    /// A handler with nothing put aside.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new() -> Result<Handler, Errno> {
        Ok(Handler {
            worker: Worker::new(Rights::Serve)?,
            deferred: ArrayVec::new(),
            deferred_since: 0,
            looked_ns: 0,
            naps: 0,
            most: 1,
        })
    }

    /// Waits at most `ms` milliseconds for a message (negative: for ever). The caller holds no
    /// lock.
    pub fn wait(&mut self, pager: &Pager, ms: i32) {
        self.wait_by(pager, ms, |time| pager.uffd().wait_readable_for(time));
    }

    /// The same by `wait`, which gets the limit (`None`: for ever); true: a message came.
    pub fn wait_by(&mut self, pager: &Pager, ms: i32, wait: impl FnOnce(Option<&Timespec>) -> bool) {
        if self.has_deferred() && self.naps < NAPS {
            self.naps += 1;
            wait(Some(&Timespec { tv_sec: 0, tv_nsec: i64::from(NAP_US) * 1000 }));
        } else {
            let is_calm = !self.has_deferred() && pager.mappings.order.lock().is_all_certain() && !pager.forks.hold.is_owed();
            let can_rest = self.worker.can_rest();
            let ms = if !is_calm {
                1
            } else if pager.mappings.going.is_on() && !(0..GOING_MS).contains(&ms) {
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

    /// Frees memory while idle.
    pub fn rests(&mut self) {
        self.worker.rests();
    }

    /// Whether unread messages hold up deferred faults, the event order, a held fork or a removal.
    pub fn wants_to_read(&self, pager: &Pager) -> bool {
        self.has_deferred()
            || pager.mappings.going.is_on()
            || pager.forks.hold.is_owed()
            || !pager.mappings.order.lock().is_all_certain()
    }

    /// Whether it has faults that no other thread knows of.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Serves some faults, or applies events up to the next faults. Waits for nothing. The caller
    /// holds no lock.
    pub fn turn(&mut self, pager: &Pager) -> Turn {
        let mut turn = Turn::default();
        self.read(pager, false, &mut turn);
        self.serve_deferred(pager);
        turn
    }

    /// The same where faults come another way: first `told`. `reads`: reads all waiting messages,
    /// too.
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

    fn take(&mut self, pager: &Pager, faults: &[Fault], turn: &mut Turn) -> bool {
        if faults.is_empty() {
            return false;
        }
        if self.deferred.is_empty() {
            turn.threads = faults.len();
            turn.thread = self.serve_all(pager, faults);
            return self.deferred.is_empty();
        }
        // Serving them in vain would only delay the event.
        for fault in faults {
            self.defer(pager, *fault, now_ns());
        }
        false
    }

    /// Wakes the threads of one read together: a thread switch costs more than a page. A slow fault
    /// does not delay the others ([`Worker::is_about_to_wait`]). Returns one of the threads.
    fn serve_all(&mut self, pager: &Pager, faults: &[Fault]) -> Option<u32> {
        let read_at = now_ns();
        let mut unwoken_since = read_at;
        let mut served = None;
        self.worker.take_in_hand(faults);
        let mut threads = faults.iter().map(|fault| fault.thread);
        while let Some(fault) = self.worker.next_in_hand() {
            if self.serve_or_poison(pager, fault, read_at) == Served::EventsFirst {
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

    /// Brings in the page at `addr`, for which no thread waits, if that works at once.
    pub fn bring_in(&mut self, pager: &Pager, addr: usize) {
        let _ = pager.serve_within_limit(addr & !(PAGE_SIZE - 1), Access::Write, now_ns(), &mut self.worker);
        self.worker.wake(pager.uffd());
    }

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
            && self.serve_or_poison(pager, fault, self.deferred_since) != Served::EventsFirst
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

    /// The thread still waits, unless the page is lost.
    fn serve_or_poison(&mut self, pager: &Pager, fault: Fault, read_at: u64) -> Served {
        let served = pager.serve_within_limit(fault.addr, fault.access, read_at, &mut self.worker);
        // Without poison (Linux before 6.6) the thread faults again.
        if served == Served::Lost && pager.uffd().poison(fault.addr, PAGE_SIZE).is_err() {
            pager.uffd().wake(fault.addr, PAGE_SIZE);
        }
        served
    }

    fn let_run(&mut self, pager: &Pager) {
        pager.stage_ahead(&mut self.worker);
        self.worker.wake(pager.uffd());
    }
}
