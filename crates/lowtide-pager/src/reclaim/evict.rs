//! Eviction: when pages leave their places, and when staging is drained.
//!
//! Detaching a page interrupts the CPUs on which threads of the program or of lowtide run, and storing one takes time. So they
//! are done by different threads: a monitor detaches some hundred pages while the program's thread waits for it anyway, on the
//! same CPU and while the reclaimer sleeps, and leaves them in staging ([`Pager::stage_ahead`]); the reclaimer drains staging
//! meanwhile ([`Pager::evict`]), and detaches pages itself only where there are no faults to do it.
//!
//! Nothing is detached that no tier would take but zeros (`zeros.rs`), and where a look at all memory found nothing, the next
//! one waits (`backoff.rs`).

use core::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::fault::worker::{Reach, Worker};
use crate::pager::{Operation, Pager, add};
use crate::reclaim::backoff::Backoff;
use crate::reclaim::detach::Detached;
use crate::reclaim::drain::Drained;
use crate::reclaim::evicted::Evicted;
use crate::reclaim::staging::Batch;
use crate::sys::clock::now_ns;

/// Scans of one call at most.
const SCANS: usize = 64;

impl Pager {
    /// The reclaimer's step of reclaim while faults come: drains a batch of staging, if enough waits there.
    pub fn drain_staged(&self, worker: &mut Worker) -> Evicted {
        let Some(operation) = self.enter() else { return Evicted::Later };
        if !self.staging.is_worth_draining() {
            return Evicted::Ahead;
        }
        operation.drained(worker).unless_nothing(Evicted::Ahead)
    }

    /// One step of reclaim: fills a batch of staging, and drains the oldest one when enough are filled. May be
    /// called by any thread that holds no lock; never waits for a fault unless the worker may.
    pub fn evict(&self, worker: &mut Worker) -> Evicted {
        self.evict_or_let_go(worker).0
    }

    /// The same, and whether nothing was evicted: it was a part of what the program has dropped (`mappings/going.rs`).
    fn evict_or_let_go(&self, worker: &mut Worker) -> (Evicted, bool) {
        let Some(operation) = self.enter() else { return (Evicted::Later, false) };
        let has_let_go = self.let_go_for_room();
        if self.all_must_stay() {
            operation.all_goes_back(worker);
            return if has_let_go { (Evicted::Progress, true) } else { (Evicted::Nothing, false) };
        }
        let arrived = self.arrived.load(Ordering::Relaxed);
        let pause = self.backoff.holds(now_ns(), arrived);
        let evicted = match pause {
            Some(why) => why,
            None if operation.store().would_take() => operation.evict(worker),
            // Pages that nobody takes would be detached only to be put back, again and again.
            None => Evicted::Full,
        };
        if self.all_must_stay() {
            operation.all_goes_back(worker);
        }
        let is_vain = matches!(evicted, Evicted::Nothing | Evicted::Full);
        // That gives room back, and then pages can be evicted that stay until it is done: so this is not the end.
        if is_vain && (self.going.was_in_the_way() || has_let_go) {
            return (Evicted::Progress, true);
        }
        if evicted == Evicted::Progress {
            self.backoff.succeeded();
        } else if is_vain && pause.is_none() {
            self.backoff.failed(evicted, now_ns(), arrived);
        }
        // Only a thread that nobody waits for searches for zeros.
        if evicted == Evicted::Full && worker.may_fault && self.budget.lacks_room() {
            return (operation.search_zeros(worker), false);
        }
        (evicted, false)
    }

    /// Detaches pages for the reclaimer to store, if it sleeps and there is reason: by a monitor, whose CPU's thread waits. It
    /// goes no further than staging has room for.
    pub fn stage_ahead(&self, worker: &mut Worker) {
        if !self.budget.above_high() || self.is_reclaiming() || self.staging.is_above_target() || self.all_stays() {
            return;
        }
        // The protection is asked of the list of mappings (`alike.rs`), which a thread of the program can't read.
        if !self.can_look(worker) || self.asks_protection() && worker.reach() == Reach::Memory {
            return;
        }
        let Some(operation) = self.enter() else { return };
        let (started, arrived) = (now_ns(), self.arrived.load(Ordering::Relaxed));
        let is_vain = |backoff: &Backoff| backoff.holds(started, arrived).is_some();
        if is_vain(&self.backoff) || is_vain(&self.ahead_backoff) || !operation.store().would_take() {
            return;
        }
        let before = self.counters().evictions_pages.load(Ordering::Relaxed);
        match operation.fill_batch(worker) {
            Filled::Progress => self.ahead_backoff.succeeded(),
            Filled::NoBatch => {}
            // A thread that evicts for want of memory finds out what it means. Here it means not to try at each fault.
            _ => self.ahead_backoff.failed(Evicted::Nothing, started, arrived),
        }
        if self.all_must_stay() {
            operation.all_goes_back(worker);
        }
        let pages = self.counters().evictions_pages.load(Ordering::Relaxed) - before;
        add(&self.counters().evictions_background, pages as usize);
        add(&self.counters().staging_ahead_ns, (now_ns() - started) as usize);
    }

    /// The same by a monitor, whose other faults are for others meanwhile: pages may go to a device.
    pub(crate) fn evict_for_fault(&self, worker: &mut Worker) -> (Evicted, bool) {
        self.is_about_to_wait(worker);
        self.evict_or_let_go(worker)
    }

    /// Bytes of the program that are adopted and in memory: what is not evicted, whether it could be or not. Some milliseconds
    /// for a GiB that is in memory.
    ///
    /// # Errors
    /// Those of looking: then nothing is known.
    pub fn adopted_in_memory(&self) -> Result<u64, Errno> {
        let (mut at, mut bytes) = (0, 0);
        loop {
            let next = self.regions.next(&self.space.shared(), at);
            let Some(range) = next else { return Ok(bytes) };
            // Without the lock: what is unmapped meanwhile has no pages.
            bytes += self.present().bytes(range.start, range.end)? as u64;
            at = range.end;
        }
    }
}

/// What filling a batch came to.
enum Filled {
    /// It is queued, or there is more to look at.
    Progress,
    /// It is queued, and all memory was looked at for next to nothing.
    Little,
    /// There are pages, and they can't be detached now.
    Later,
    /// All memory was looked at.
    Nothing,
    /// No batch is empty.
    NoBatch,
}

impl Operation<'_> {
    fn evict(&self, worker: &mut Worker) -> Evicted {
        // What waits is memory too: of many processes it would be all that there is.
        if self.staging.is_above_target() {
            match self.drained(worker) {
                Evicted::Nothing => {}
                other => return other,
            }
        }
        // What is found by looking at all memory must be worth that look. What waits is drained meanwhile.
        let (started, arrived) = (now_ns(), self.arrived.load(Ordering::Relaxed));
        let filled = match self.look_backoff.holds(started, arrived) {
            Some(_) => Filled::Nothing,
            None => self.fill_batch(worker),
        };
        match filled {
            Filled::Little => self.look_backoff.failed(Evicted::Nothing, started, arrived),
            Filled::Progress => self.look_backoff.succeeded(),
            _ => {}
        }
        match filled {
            // That others drain what waits proves nothing of what is in memory.
            Filled::Progress if self.staging.empty_batches() < 2 => self.drained(worker).unless_nothing(Evicted::Progress),
            Filled::Progress | Filled::Little => Evicted::Progress,
            Filled::Later => Evicted::Later,
            Filled::NoBatch if self.staging.is_lost() => Evicted::Nothing,
            Filled::NoBatch => self.drained(worker).unless_nothing(Evicted::Ahead),
            // Nothing left to detach: what waits in staging is all there is.
            Filled::Nothing => {
                self.hand.lock().look_again();
                match self.drained(worker) {
                    Evicted::Progress if self.staging.staged() == 0 => Evicted::Nothing,
                    Evicted::Nothing if self.staging.staged() > 0 && !self.staging.is_lost() => Evicted::Ahead,
                    other => other,
                }
            }
        }
    }

    /// Detaches pages into an empty batch, and queues it.
    fn fill_batch(&self, worker: &mut Worker) -> Filled {
        let Some(batch) = self.staging.take_empty() else { return Filled::NoBatch };
        let frames = self.staging.batch_frames();
        let (mut used, mut filled) = (0, 0);
        let (mut later, mut may_be_old) = (false, true);
        for _ in 0..SCANS {
            if used == frames {
                break;
            }
            if self.hand.lock().is_idle() {
                // That may have been found out long ago: much may have come into memory since.
                if !core::mem::take(&mut may_be_old) {
                    break;
                }
                self.hand.lock().look_again();
            }
            let Some(found) = self.find(frames - used) else { continue };
            may_be_old = false;
            if let Some(is_code) = found.is_code.filter(|is_code| *is_code != self.staging.is_for_code(batch)) {
                if filled > 0 {
                    // For a batch of its own.
                    self.hand.lock().goes_back(&found);
                    break;
                }
                self.staging.prepare(batch, is_code);
            }
            let detached = self.detach(&found, self.staging.first(batch) + used, frames - used, worker);
            self.arm(found.accessed);
            match detached {
                Detached::Pages { frames, pages } => (used, filled) = (used + frames, filled + pages),
                // The reclaimer unshares what is shared. A monitor that went on looking would try all of it in vain for each
                // fault.
                Detached::EventsFirst | Detached::Busy => {
                    later = true;
                    break;
                }
            }
        }
        if filled > 0 {
            self.queue(batch, filled);
            let is_little = used < frames && self.hand.lock().is_idle();
            return if is_little { Filled::Little } else { Filled::Progress };
        }
        self.staging.put_empty(batch);
        if later {
            Filled::Later
        } else if self.hand.lock().is_idle() {
            Filled::Nothing
        } else {
            Filled::Progress
        }
    }

    /// Queues a batch that this many pages were detached into.
    pub(crate) fn queue(&self, batch: Batch, pages: usize) {
        self.staging.put_full(batch);
        self.publish_own();
        add(&self.counters().evictions_pages, pages);
    }

    /// Drains the oldest batch.
    pub(crate) fn drained(&self, worker: &mut Worker) -> Evicted {
        match self.drain(worker) {
            Drained::Freed => Evicted::Progress,
            Drained::Nothing => Evicted::Nothing,
            Drained::Full => Evicted::Full,
            Drained::Later => Evicted::Later,
        }
    }
}
