//! Memory is adopted: the keeper keeps the run under its limit, and uses the time when there is nothing to evict.

use core::sync::atomic::Ordering;

use lowtide_core::store::AreaState;
use lowtide_core::vm;
use lowtide_pager::fault::Worker;
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::Evicted;
use lowtide_pager::segment::{self, area_state};
use lowtide_pager::sys::Line;
use lowtide_pager::sys::clock::{self, now_us};

use super::{Keeper, LONGEST_SLEEP_US, LOOK_AGAIN, Nap, SHORTEST_SLEEP_US, TOUCH_BYTES_PER_US, areas, reclaim};
use crate::idle::Idle;
use crate::{agent, gate, say, swap_file, watch};

/// In a process in which nothing happens (`idle.rs`) looks are at least so far apart: a monitor wakes the keeper when something
/// does.
const QUIET_NAP_US: u64 = 5_000;
/// Growth that nobody counted: there must be mappings that are not adopted.
pub(super) const UNACCOUNTED: u64 = 1 << 20;
/// What forked children had that are gone is dropped this often.
const LOOK_AT_CHILDREN_US: u64 = 1_000_000;
/// No tier could take a page: the keeper looks again after this. (Whether it is worth while to try is the pager's affair.)
const FULL_PAUSE_US: u64 = 100_000;
/// So long may a run be over its limit because all is full until it is judged: zeros are searched for meanwhile.
const FULL_FOR_US: u64 = 1_000_000;
/// Nothing could be evicted: the same.
const EXHAUSTED_PAUSE_US: u64 = 10_000;
/// Monitors detach pages: the keeper looks after so long at most whether they still do, ...
const AHEAD_US: u64 = 2_000;
/// ... and at least, however little room is left.
const SHORTEST_AHEAD_US: u64 = 100;
/// Objects of the pool that are moved at a time while there is nothing else to do: a fraction of a millisecond.
const COMPACT_PAGES: usize = 256;
/// Cold pages that are compressed again at a time, while nothing happens at all: half a millisecond.
const RECOMPRESS_PAGES: usize = 16;
/// For each microsecond of that, the keeper sleeps so many: it takes a quarter of a CPU at most.
const RECOMPRESS_REST: u64 = 3;

/// Compresses some cold pages of the pool again; for how long to sleep afterwards.
fn recompress(pager: &Pager, worker: &mut Worker, idle: &mut Idle, shared: bool, now_us: u64) -> Option<u64> {
    // The pool of a forked child is its parent's too, copy-on-write, until one of them changes it: that would take memory in
    // both.
    if shared || !pager.wants_recompression(now_us) || !idle.is_cpu_free(now_us) {
        return None;
    }
    if pager.recompress(worker, RECOMPRESS_PAGES, now_us) == 0 {
        return None;
    }
    let took = clock::now_us().saturating_sub(now_us);
    Some((took * RECOMPRESS_REST).clamp(SHORTEST_SLEEP_US, LONGEST_SLEEP_US))
}

/// Evicts a batch in the background; what came of it, and how many pages went out if any did. (Monitors may evict at the same
/// time: theirs are counted here too.)
pub(super) fn evict(pager: &Pager, worker: &mut Worker) -> (Evicted, u64) {
    let counters = pager.counters();
    let before = counters.evictions_pages.load(Ordering::Relaxed);
    let evicted = pager.evict(worker);
    if evicted != Evicted::Some {
        return (evicted, 0);
    }
    let pages = counters.evictions_pages.load(Ordering::Relaxed) - before;
    counters.evictions_background.fetch_add(pages, Ordering::Relaxed);
    (evicted, pages)
}

impl Keeper {
    /// Memory is adopted: keep it under the limit. Returns for how long to sleep.
    pub(super) fn keep(&mut self, pager: &Pager, total: u64) -> Nap {
        pager.budget.set_limit(agent::settings().ram_limit.load(Ordering::Relaxed));
        pager.budget.set_ceiling(agent::settings().ram_ceiling.load(Ordering::Relaxed));
        pager.set_sharers(self.resident.sharers());
        if pager.wants_writes_watched() {
            if gate::try_close() {
                pager.watch_writes();
                gate::open();
            } else {
                pager.watch_writes_later();
            }
        }
        let now = now_us();
        if pager.was_forked() && now.saturating_sub(self.children_looked_at) >= LOOK_AT_CHILDREN_US {
            self.children_looked_at = now;
            pager.release_dead(agent::segment());
        }
        if self.areas_fail() {
            swap_file::say_what_fails(&pager.area_stats(), &mut self.said_failing);
        }
        if let Some(error) = vm::kept_by()
            && !core::mem::replace(&mut self.said_kept, true)
        {
            let mut line = Line::new();
            line.push(b"lowtide may not give memory back to the kernel (madvise: error ").number(error.raw_os_error() as u64);
            say::warn(
                line.push(b"): a filter of system calls or a tracer forbids it, and the run goes over its limit").bytes(),
            );
        }
        self.staging.look(pager.counters().faults_total.load(Ordering::Relaxed), pager.have_arrived());
        pager.set_staging_target(self.staging.target(pager.budget.asked(), agent::segment().active()));
        let pool_limit = agent::settings().pool_limit.load(Ordering::Relaxed);
        pager.set_pool_limit(self.pool_share.look(agent::segment(), pager, pool_limit, total) as usize);
        // Acquire: pairs with the Release in `look_again`. The mapping is there.
        let changed = LOOK_AGAIN.load(Ordering::Acquire);
        let alone = !changed && self.resident.sharers() == 0 && agent::segment().active() <= 1;
        pager.budget.set_calm(self.calm.look(now, (total as i64).wrapping_sub(self.expected_without_others as i64), alone));
        let grown = total.saturating_sub(self.expected) > UNACCOUNTED && total > pager.budget.adopt_mark();
        if self.look.is_due(now, grown || changed) {
            self.adopt_all(pager);
        }
        self.floor.look(pager, total, now);
        self.thread_ends.look(pager, now);
        if self.worker.is_none() {
            self.worker = Worker::new(true).ok();
        }
        if self.worker.is_none() {
            return Nap::UntilFaults(SHORTEST_SLEEP_US);
        }
        self.answer_what_is_fixed(pager);
        areas::tell_fills(pager);
        if total <= pager.budget.limit() {
            self.full_since_us = None;
            if let Some(nap) = self.reclaim(pager) {
                return nap;
            }
        }
        let Some(worker) = &mut self.worker else { return Nap::UntilFaults(SHORTEST_SLEEP_US) };
        let yields = self.yields.look(agent::segment(), agent::proc(), now);
        let low = if yields { pager.budget.yielding_mark() } else { pager.budget.low_mark() };
        if yields && total <= pager.budget.high_mark() {
            // It gives what is its alone: what it shares makes no room, and would be stored by each that has it.
            pager.set_sharers(u64::MAX);
        }
        let was_above = core::mem::replace(&mut self.above_low, total > low);
        let quiet = self.idle.is_quiet(pager, now);
        // The one monitor that watches may wait for a CPU that others keep busy.
        let faults = pager.counters().faults_total.load(Ordering::Relaxed);
        let faults_come = core::mem::replace(&mut self.faults_seen, faults) != faults;
        if !faults_come && pager.uffd().is_readable() {
            watch::call_all();
        }
        if total <= low {
            // Well below the limit, or when nothing happens: while this works, nobody watches what the program touches.
            if quiet || total <= pager.budget.adopt_mark() {
                pager.maintain();
                if pager.shrink_pool(worker) || pager.compact(COMPACT_PAGES) {
                    return Nap::UntilFaults(SHORTEST_SLEEP_US);
                }
            }
            if quiet && let Some(sleep) = recompress(pager, worker, &mut self.idle, self.resident.sharers() > 0, now_us()) {
                return Nap::UntilFaults(sleep);
            }
            pager.forget_compressor(worker);
            let nap = Self::nap((pager.budget.high_mark() - total).min(64 << 20));
            return Nap::UntilFaults(if quiet { nap.max(QUIET_NAP_US) } else { nap });
        }
        // What is free already goes first. While eviction goes on it would only take the drained frames again.
        if !was_above {
            pager.drain_frames();
        }
        // This process's part of what is too much, or all of it; measured again after at most 2 MiB, because new mappings may
        // have appeared.
        let mine = agent::proc().ram_bytes.load(Ordering::Relaxed);
        let part = (total - low) as u128 * u128::from(mine) / u128::from(total.max(1));
        let excess = if yields { total - low } else { part as u64 };
        let batch = pager.batch_bytes() as u64;
        let batches = (excess / batch).clamp(1, (2 << 20) / batch);
        // Far above a limit that was lowered: the program has half of the time in which pages are on their way out.
        let (started, lowered) = (now_us(), pager.budget.ceiling() > pager.budget.limit());
        for _ in 0..batches {
            let ahead = faults_come && !lowered && !pager.budget.at_limit();
            match if ahead { pager.drain_staged(worker) } else { evict(pager, worker).0 } {
                Evicted::Ahead => {
                    let room = pager.budget.limit().saturating_sub(total) / TOUCH_BYTES_PER_US;
                    return Nap::UntilFaults(room.clamp(SHORTEST_AHEAD_US, AHEAD_US));
                }
                Evicted::Some => {}
                Evicted::Later => return Nap::UntilFaults(50),
                Evicted::Nothing => {
                    pager.drain_frames();
                    if !yields && total > pager.budget.ceiling() && (pager.shrink_pool(worker) || pager.compact(COMPACT_PAGES))
                    {
                        return Nap::UntilFaults(0);
                    }
                    if !yields {
                        self.floor.exhausted(pager, total, now);
                    } else if pager.empty_pool(worker) || pager.compact(COMPACT_PAGES) {
                        // What was compressed goes last. What the others can't move is not for this process to find out.
                        return Nap::UntilFaults(SHORTEST_SLEEP_US);
                    }
                    reclaim::give_up();
                    return Nap::Undisturbed(EXHAUSTED_PAUSE_US);
                }
                full @ (Evicted::Full | Evicted::Searching) => {
                    reclaim::give_up();
                    let pause = match full {
                        Evicted::Searching => pager.search_rests_us().min(FULL_PAUSE_US),
                        _ if pager.budget.above_high() => EXHAUSTED_PAUSE_US,
                        _ => FULL_PAUSE_US,
                    };
                    if now.saturating_sub(self.last_resorts_us) < FULL_PAUSE_US {
                        return Nap::Undisturbed(pause);
                    }
                    self.last_resorts_us = now;
                    pager.drain_frames();
                    // What dead children had may be all that is needed.
                    if pager.was_forked() && pager.release_dead(agent::segment()) {
                        return Nap::UntilFaults(0);
                    }
                    // Room inside the pool's spans is the last resort.
                    if pager.compact(COMPACT_PAGES) {
                        return Nap::UntilFaults(0);
                    }
                    self.judge_full(pager, now);
                    return Nap::Undisturbed(pause);
                }
            }
        }
        Nap::UntilFaults(if lowered { (now_us() - started).min(LONGEST_SLEEP_US) } else { 0 })
    }

    /// Whether a swap area of this process can't be written, as was last published.
    fn areas_fail(&self) -> bool {
        let failing = area_state(AreaState::Failing);
        agent::proc().areas_now.iter().any(|area| area.state.load(Ordering::Relaxed) == failing)
    }

    /// No tier takes a page.
    fn judge_full(&mut self, pager: &Pager, now: u64) {
        pager.publish();
        if self.areas_fail() {
            swap_file::say_what_fails(&pager.area_stats(), &mut self.said_failing);
        }
        // Being full at times is normal for a small pool; being over the limit because of it is not.
        let limit = pager.budget.limit();
        let over = pager.budget.now().saturating_sub(limit);
        if over == 0 {
            self.full_since_us = None;
            return;
        }
        // Zeros are searched for, and may be all that is needed.
        let since = *self.full_since_us.get_or_insert(now);
        let is_far = over > (limit / 16).clamp(8 << 20, 64 << 20);
        if now.saturating_sub(since) < if is_far { FULL_PAUSE_US } else { FULL_FOR_US } {
            return;
        }
        // Who lowers a limit to what can't be held does not want the program to end.
        let is_lowered = pager.budget.ceiling() > pager.budget.limit();
        if agent::settings().when_full == segment::WHEN_FULL_STOP && !is_lowered {
            say::fatal(match self.areas_fail() {
                true => b"the rest of swap is full, an area can't be written, and --when-full stop was given: see the warnings",
                false => b"swap is full and --when-full stop was given: raise --ram or --pool, or give more --swap",
            });
        }
        if !core::mem::replace(&mut self.warned_full, true) {
            say::warn(b"swap is full: the run goes over its limit (raise --ram or --pool, or give more --swap)");
        }
    }
}
