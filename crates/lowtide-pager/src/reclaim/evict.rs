//! When pages are detached, and staging drained.
//!
//! Detaching interrupts CPUs; storing takes time. So a handler detaches some hundred pages while
//! its program thread waits anyway and the reclaimer sleeps ([`Pager::stage_ahead`]); the reclaimer
//! drains ([`Pager::evict`]), and detaches only without faults.
//!
//! Pages without a tier stay, except zeros (`zeros.rs`); after a vain search the next one waits
//! (`backoff.rs`).

use core::sync::atomic::Ordering;

use lowtide_sys::clock::now_ns;
use lowtide_wire::segment::add;
use rustix::io::Errno;

use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::staging::Batch;
use crate::pages::worker::Worker;
use crate::reclaim::backoff::Backoff;
use crate::reclaim::detach::Detached;
use crate::reclaim::evicted::Evicted;

const SCANS: usize = 64;

impl Pager {
    /// Drains a batch if enough pages are staged, while faults come.
    pub fn drain_staged(&self, worker: &mut Worker) -> Evicted {
        let Some(operation) = self.enter() else { return Evicted::Later };
        if !self.pages.staging.is_worth_draining() {
            return Evicted::Ahead;
        }
        operation.drain(worker).unless_nothing(Evicted::Ahead)
    }

    /// Fills a batch, and drains the oldest if enough are filled. Hold no lock. Waits for faults
    /// only if the worker may.
    pub fn evict(&self, worker: &mut Worker) -> Evicted {
        let Some(operation) = self.enter() else { return Evicted::Later };
        let has_let_go = self.let_go_for_room();
        if self.soft_dirty_is_read() {
            operation.put_staged_back(worker);
            return if has_let_go { Evicted::LetGo } else { Evicted::Nothing };
        }
        let arrived = self.pages.arrived.load(Ordering::Relaxed);
        let pause = self.reclaim.backoff.holds(now_ns(), arrived);
        let evicted = match pause {
            Some(why) => why,
            None if operation.store().would_take() => operation.evict(worker),
            // Detached pages would only come back.
            None => Evicted::Full,
        };
        if self.soft_dirty_is_read() {
            operation.put_staged_back(worker);
        }
        let is_vain = matches!(evicted, Evicted::Nothing | Evicted::Full);
        // Freeing makes room, and lets kept pages leave.
        if is_vain && (self.mappings.going.was_in_the_way() || has_let_go) {
            return Evicted::LetGo;
        }
        if evicted == Evicted::Progress {
            self.reclaim.backoff.succeeded();
        } else if is_vain && pause.is_none() {
            self.reclaim.backoff.failed(evicted, now_ns(), arrived);
        }
        // Only a thread without waiters searches.
        if evicted == Evicted::Full && worker.rights().may_wait() && self.accounts.budget.lacks_room() {
            return operation.search_zeros(worker);
        }
        evicted
    }

    /// Detaches for the sleeping reclaimer while a program thread waits, within staging's room.
    pub fn stage_ahead(&self, worker: &mut Worker) {
        if !self.accounts.budget.above_high()
            || self.is_reclaiming()
            || self.pages.staging.is_above_target()
            || self.soft_dirty_was_read()
        {
            return;
        }
        // Protections (`alike.rs`) come from the mappings, unreadable for program threads.
        if !self.has_page_map(worker.rights()) || self.asks_protection() && !worker.rights().has_devices() {
            return;
        }
        let Some(operation) = self.enter() else { return };
        let (started, arrived) = (now_ns(), self.pages.arrived.load(Ordering::Relaxed));
        let is_vain = |backoff: &Backoff| backoff.holds(started, arrived).is_some();
        if is_vain(&self.reclaim.backoff) || is_vain(&self.reclaim.ahead_backoff) || !operation.store().would_take() {
            return;
        }
        let before = self.counters().evictions_pages.load(Ordering::Relaxed);
        match operation.fill_batch(worker) {
            Filled::Progress => self.reclaim.ahead_backoff.succeeded(),
            Filled::NoBatch => {}
            // Only avoids retries at each fault.
            _ => self.reclaim.ahead_backoff.failed(Evicted::Nothing, started, arrived),
        }
        if self.soft_dirty_is_read() {
            operation.put_staged_back(worker);
        }
        let pages = self.counters().evictions_pages.load(Ordering::Relaxed) - before;
        add(&self.counters().evictions_background, pages as usize);
        add(&self.counters().staging_ahead_ns, (now_ns() - started) as usize);
    }

    /// For handlers whose faults others take over: pages may go to a device.
    pub(crate) fn evict_for_fault(&self, worker: &mut Worker) -> Evicted {
        self.is_about_to_wait(worker);
        self.evict(worker)
    }

    /// Bytes of registered memory in RAM; milliseconds a GiB.
    ///
    /// # Errors
    /// Those of scanning.
    pub fn registered_in_memory(&self) -> Result<u64, Errno> {
        let (mut at, mut bytes) = (0, 0);
        loop {
            let next = self.mappings.regions.next(&self.pages.space.shared(), at);
            let Some(range) = next else { return Ok(bytes) };
            // Unlocked: unmapped memory has no pages.
            bytes += self.present().bytes(range.start, range.end)? as u64;
            at = range.end;
        }
    }
}

enum Filled {
    /// Queued, or there is more to scan.
    Progress,
    /// Queued, after a scan of all memory for next to nothing.
    Little,
    Later,
    Nothing,
    NoBatch,
}

impl Operation<'_> {
    fn evict(&self, worker: &mut Worker) -> Evicted {
        // Staged pages take memory: with many processes, all.
        if self.pages.staging.is_above_target() {
            match self.drain(worker) {
                Evicted::Nothing => {}
                other => return other,
            }
        }
        // A scan of all memory must pay.
        let (started, arrived) = (now_ns(), self.pages.arrived.load(Ordering::Relaxed));
        let filled = match self.reclaim.look_backoff.holds(started, arrived) {
            Some(_) => Filled::Nothing,
            None => self.fill_batch(worker),
        };
        match filled {
            Filled::Little => self.reclaim.look_backoff.failed(Evicted::Nothing, started, arrived),
            Filled::Progress => self.reclaim.look_backoff.succeeded(),
            _ => {}
        }
        match filled {
            Filled::Progress if self.pages.staging.empty_batches() < 2 => self.drain(worker).unless_nothing(Evicted::Progress),
            Filled::Progress | Filled::Little => Evicted::Progress,
            Filled::Later => Evicted::Later,
            Filled::NoBatch if self.pages.staging.is_lost() => Evicted::Nothing,
            Filled::NoBatch => self.drain(worker).unless_nothing(Evicted::Ahead),
            // Only staging is left.
            Filled::Nothing => {
                self.reclaim.hand.lock().look_again();
                match self.drain(worker) {
                    Evicted::Progress if self.pages.staging.staged() == 0 => Evicted::Nothing,
                    Evicted::Nothing if self.pages.staging.staged() > 0 && !self.pages.staging.is_lost() => Evicted::Ahead,
                    other => other,
                }
            }
        }
    }

    fn fill_batch(&self, worker: &mut Worker) -> Filled {
        let Some(batch) = self.pages.staging.take_empty() else { return Filled::NoBatch };
        let frames = self.pages.staging.batch_frames();
        let (mut used, mut filled) = (0, 0);
        let (mut later, mut may_be_old) = (false, true);
        for _ in 0..SCANS {
            if used == frames {
                break;
            }
            if self.reclaim.hand.lock().is_idle() {
                // Perhaps an old finding.
                if !core::mem::take(&mut may_be_old) {
                    break;
                }
                self.reclaim.hand.lock().look_again();
            }
            let Some(found) = self.find(frames - used) else { continue };
            may_be_old = false;
            if let Some(is_code) = found.is_code.filter(|is_code| *is_code != self.pages.staging.is_for_code(batch)) {
                if filled > 0 {
                    self.reclaim.hand.lock().goes_back(&found);
                    break;
                }
                self.pages.staging.prepare(batch, is_code);
            }
            let detached = self.detach(&found, self.pages.staging.first(batch) + used, frames - used, worker);
            match detached {
                Detached::Pages { frames, pages } => (used, filled) = (used + frames, filled + pages),
                // The reclaimer unshares; handlers would retry in vain.
                Detached::EventsFirst | Detached::Busy => {
                    later = true;
                    break;
                }
            }
        }
        if filled > 0 {
            self.queue(batch, filled);
            let is_little = used < frames && self.reclaim.hand.lock().is_idle();
            return if is_little { Filled::Little } else { Filled::Progress };
        }
        self.pages.staging.put_empty(batch);
        if later {
            Filled::Later
        } else if self.reclaim.hand.lock().is_idle() {
            Filled::Nothing
        } else {
            Filled::Progress
        }
    }

    pub(crate) fn queue(&self, batch: Batch, pages: usize) {
        self.pages.staging.put_full(batch);
        self.publish_own();
        add(&self.counters().evictions_pages, pages);
    }
}
