//! The reclaimer, like kswapd: looks, asks `policy.rs`, and acts. Agent and library run one each
//! and implement [`Host`].

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::clock;

use super::evicted::Evicted;
use super::policy::{self, How, Ladder, Look, Nap, Plan, SHORTEST_NAP_US, Step};
use crate::pager::Pager;
use crate::pages::Worker;

/// Objects moved at a time: a fraction of a millisecond.
const COMPACT_PAGES: usize = 256;
/// Half a millisecond.
const RECOMPRESS_PAGES: usize = 16;
const QUIET_US: u64 = 1_000_000;
const STILL: u64 = 256 << 10;
const REQUESTED_BATCHES: usize = 4;

/// The reclaimer's owner.
pub trait Host {
    /// Whether a CPU is idle; may take a system call.
    fn may_recompress(&mut self, now_us: u64) -> bool;
    /// Runs between steps, which may wait for devices.
    fn between_steps(&mut self, pager: &Pager);
    /// Drops state of dead children, if any.
    fn reap(&mut self, pager: &Pager) -> bool;
    /// Nothing can be evicted now.
    fn give_up(&mut self);
    /// The same; the run uses `total` bytes.
    fn exhausted(&mut self, pager: &Pager, total: u64, now_us: u64);
    /// No tier takes pages.
    fn full(&mut self, pager: &Pager, now_us: u64);
}

/// Measurements.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Bytes used by the run.
    pub total: u64,
    /// Bytes used by this process.
    pub mine: u64,
    /// See [`Look::gives_way`].
    pub gives_way: bool,
    /// See [`Look::grows_unseen`].
    pub grows_unseen: bool,
    /// See [`Look::is_woken`].
    pub is_woken: bool,
    /// See [`Look::may_reap`].
    pub may_reap: bool,
    /// See [`Look::touch_rate`].
    pub touch_rate: u64,
    /// In microseconds.
    pub now_us: u64,
}

/// State of the thread.
pub struct Reclaimer {
    /// Its resources for eviction.
    pub worker: Worker,
    above_low: bool,
    faults: u64,
    /// Faults and evictions then, and since when, in microseconds.
    happened: u64,
    quiet_since_us: u64,
    /// Size then, and since when both.
    mine: u64,
    still_since_us: u64,
    last_resorts_us: u64,
}

enum Taken {
    /// Nothing that matters.
    InVain,
    Worked,
    /// Worked, with its own rest.
    Rests(Nap),
}

impl Taken {
    fn of(worked: bool) -> Taken {
        if worked { Taken::Worked } else { Taken::InVain }
    }
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    /// Bytes evicted, perhaps not the last.
    Bytes(u64),
    /// Bytes evicted, the last.
    Last(u64),
    /// Bytes evicted; blocked for now.
    Later(u64),
}

impl Reclaimer {
    /// `worker` may wait.
    pub fn new(worker: Worker) -> Reclaimer {
        Reclaimer {
            worker,
            above_low: false,
            faults: 0,
            happened: 0,
            quiet_since_us: 0,
            mine: 0,
            still_since_us: 0,
            last_resorts_us: 0,
        }
    }

    /// Looks; call once before each [`Reclaimer::turn`].
    pub fn look(&mut self, pager: &Pager, seen: &Seen) -> Look {
        let (budget, counters) = (&pager.accounts.budget, pager.counters());
        let faults = counters.faults_total.load(Ordering::Relaxed);
        let happened = counters.happened();
        if core::mem::replace(&mut self.happened, happened) != happened {
            self.quiet_since_us = seen.now_us;
            self.still_since_us = seen.now_us;
        }
        if seen.mine.abs_diff(self.mine) >= STILL {
            (self.mine, self.still_since_us) = (seen.mine, seen.now_us);
        }
        Look {
            marks: budget.watermarks(),
            ceiling: budget.ceiling(),
            total: seen.total,
            mine: seen.mine,
            batch: pager.batch_bytes() as u64,
            was_above: self.above_low,
            faults_come: core::mem::replace(&mut self.faults, faults) != faults,
            quiet: seen.now_us.saturating_sub(self.quiet_since_us) >= QUIET_US,
            still_us: seen.now_us.saturating_sub(self.still_since_us),
            above_high: budget.above_high(),
            at_limit: budget.at_limit(),
            coming_down: budget.is_coming_down(),
            gives_way: seen.gives_way,
            grows_unseen: seen.grows_unseen,
            is_woken: seen.is_woken,
            may_reap: seen.may_reap,
            resorts_are_due: policy::are_due(seen.now_us.saturating_sub(self.last_resorts_us)),
            search_rests_us: pager.search_rests_us(),
            touch_rate: seen.touch_rate,
        }
    }

    /// One turn; returns the nap after it.
    pub fn turn(&mut self, pager: &Pager, look: Look, now_us: u64, host: &mut impl Host) -> Nap {
        // Handlers usually do this, but may wait or sleep.
        pager.let_go_for_room();
        let nap = self.follow_policy(pager, look, now_us, host);
        if pager.has_removals_left() { nap.at_most(SHORTEST_NAP_US) } else { nap }
    }

    fn follow_policy(&mut self, pager: &Pager, mut look: Look, now_us: u64, host: &mut impl Host) -> Nap {
        let (first, times) = match policy::plan(&look) {
            Plan::Tidy(ladder) => {
                self.above_low = false;
                return self.climb(pager, ladder, &look, now_us, host);
            }
            Plan::Evict { first, times } => (first, times),
        };
        self.above_low = true;
        if let Some(step) = first {
            self.take(pager, step, &look, now_us, host);
        }
        let started = clock::now_us();
        for _ in 0..times {
            host.between_steps(pager);
            look.at_limit = pager.accounts.budget.at_limit();
            let evicted = match policy::eviction(&look) {
                How::DrainStaged => pager.drain_staged(&mut self.worker),
                How::Detach => self.evict(pager).0,
            };
            (look.above_high, look.search_rests_us) = (pager.accounts.budget.above_high(), pager.search_rests_us());
            if let Some(ladder) = policy::after(&look, evicted) {
                if matches!(evicted, Evicted::Full | Evicted::Searching) && look.resorts_are_due {
                    self.last_resorts_us = now_us;
                }
                return self.climb(pager, ladder, &look, now_us, host);
            }
        }
        policy::between_turns(&look, clock::now_us() - started)
    }

    /// Evicts up to `bytes` for the user, a few batches.
    pub fn evict_on_request(&mut self, pager: &Pager, bytes: u64) -> Requested {
        let mut done = 0;
        for _ in 0..REQUESTED_BATCHES {
            if done >= bytes {
                break;
            }
            match self.evict(pager) {
                (Evicted::Progress | Evicted::LetGo, pages) => done += pages * PAGE_SIZE as u64,
                (Evicted::Later | Evicted::Ahead, _) => return Requested::Later(done),
                (Evicted::Nothing | Evicted::Full | Evicted::Searching, _) => return Requested::Last(done),
            }
        }
        Requested::Bytes(done)
    }

    /// The pause after a blocked request.
    pub fn later() -> Nap {
        Nap::UntilFaults(SHORTEST_NAP_US)
    }

    fn climb(&mut self, pager: &Pager, ladder: Ladder, look: &Look, now_us: u64, host: &mut impl Host) -> Nap {
        for step in ladder.steps {
            host.between_steps(pager);
            match self.take(pager, *step, look, now_us, host) {
                Taken::InVain => {}
                Taken::Worked => return ladder.worked,
                Taken::Rests(nap) => return nap,
            }
        }
        ladder.otherwise
    }

    fn take(&mut self, pager: &Pager, step: Step, look: &Look, now_us: u64, host: &mut impl Host) -> Taken {
        let worker = &mut self.worker;
        match step {
            Step::ShrinkPool => return Taken::of(pager.shrink_pool(worker)),
            Step::EmptyPool => return Taken::of(pager.empty_pool(worker)),
            Step::CompactPool => return Taken::of(pager.compact(COMPACT_PAGES)),
            Step::Reap => return Taken::of(host.reap(pager)),
            Step::Recompress => {
                // Whether a CPU is idle now, not when the turn began.
                let now_us = clock::now_us();
                if pager.wants_recompression(now_us)
                    && host.may_recompress(now_us)
                    && pager.recompress(worker, RECOMPRESS_PAGES, now_us) > 0
                {
                    return Taken::Rests(policy::after_recompression(clock::now_us().saturating_sub(now_us)));
                }
            }
            Step::Maintain => pager.maintain(),
            Step::ForgetCompressor => pager.forget_compressor(worker),
            Step::DrainFrames => pager.drain_frames(),
            Step::GiveUp => host.give_up(),
            Step::Exhausted => host.exhausted(pager, look.total, now_us),
            Step::Full => host.full(pager, now_us),
        }
        Taken::InVain
    }

    /// On progress returns the pages evicted, those by handlers included.
    fn evict(&mut self, pager: &Pager) -> (Evicted, u64) {
        let counters = pager.counters();
        let before = counters.evictions_pages.load(Ordering::Relaxed);
        let evicted = pager.evict(&mut self.worker);
        if !evicted.is_progress() {
            return (evicted, 0);
        }
        let pages = counters.evictions_pages.load(Ordering::Relaxed) - before;
        counters.evictions_background.fetch_add(pages, Ordering::Relaxed);
        (evicted, pages)
    }
}
