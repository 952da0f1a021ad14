//! The policy of reclaim: what to evict, how much, when, and the fallbacks. A pure function of one
//! look; `reclaimer.rs` carries it out. To change the reclaimer, change this file and its tables.
//! `victims.rs` and `pagemap/refault.rs` choose pages, lowtide-wire's `watermarks.rs` sizes.

use super::evicted::Evicted;
use lowtide_wire::Watermarks;

/// Longest nap between looks.
pub const LONGEST_NAP_US: u64 = 100_000;
/// Shortest nap between looks.
pub const SHORTEST_NAP_US: u64 = 1_000;
/// Shortest nap of a quiet process with a waker.
pub(super) const QUIET_NAP_US: u64 = 5_000;
/// Nap of an unchanged process: this part of the time, up to [`STILL_NAP_US`], because
/// unregistrable memory may be touched.
const STILL_PART: u64 = 64;
const STILL_NAP_US: u64 = 25_000;
/// All processes that can't grow unseen wake together this often; `lowtide run` wakes those that
/// get CPU time.
const ALL_WAKE_EVERY_US: u64 = 45_000;
/// Cap of a long nap, give or take a quarter.
const LONGEST_LONG_NAP_US: u64 = 15_000_000;
/// Smaller growth needs no watch.
const UNWATCHED: u64 = 2 << 20;
/// Bytes touched by a CPU in a microsecond.
const TOUCH_BYTES_PER_US_AND_CPU: u64 = 3_000;
/// The program's affinity may change.
const LEAST_CPUS: u64 = 2;
/// Room relied on while memory can grow unseen (mappings, forks).
const MOST_UNSEEN: u64 = 64 << 20;
/// Longest nap while handlers detach pages.
pub(super) const AHEAD_US: u64 = 2_000;
pub(super) const SHORTEST_AHEAD_US: u64 = 100;
/// Retry after a pending event or fork.
const LATER_US: u64 = 50;
/// Pause without room in any tier.
const FULL_PAUSE_US: u64 = 100_000;
/// Pause with nothing to evict.
const EXHAUSTED_PAUSE_US: u64 = 10_000;
/// Evicted between measurements: mappings may have appeared.
const MOST_AT_A_TIME: u64 = 2 << 20;
/// Sleep per microsecond of recompression: a quarter of a CPU.
const RECOMPRESS_REST: u64 = 3;

/// One look, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// The watermarks.
    pub marks: Watermarks,
    /// The limit, or more on the way down to it.
    pub ceiling: u64,
    /// Use of the run.
    pub total: u64,
    /// Use of this process.
    pub mine: u64,
    /// Bytes evicted by a step.
    pub batch: u64,
    /// Above the low watermark at the previous look.
    pub was_above: bool,
    /// Faults came since, so handlers can detach.
    pub faults_come: bool,
    /// Nothing has happened for a while.
    pub quiet: bool,
    /// Microseconds without events or change of size.
    pub still_us: u64,
    /// Above the high watermark by the latest figures.
    pub above_high: bool,
    /// Faults would have to evict first.
    pub at_limit: bool,
    /// Still above a lowered limit.
    pub coming_down: bool,
    /// Gives way to busier processes (`giving_way.rs`).
    pub gives_way: bool,
    /// Memory may also grow without faults.
    pub grows_unseen: bool,
    /// If so, something wakes the reclaimer.
    pub is_woken: bool,
    /// Forked children may have died.
    pub may_reap: bool,
    /// Last resorts have rested for [`FULL_PAUSE_US`].
    pub resorts_are_due: bool,
    /// Microseconds that the search for zeros rests.
    pub search_rests_us: u64,
    /// See [`touch_rate`].
    pub touch_rate: u64,
}

/// A pause of the reclaimer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nap {
    /// Microseconds, or until faults pass the high watermark.
    UntilFaults(u64),
    /// Microseconds; faults don't end it, because nothing could be done for them.
    Undisturbed(u64),
}

impl Nap {
    /// Caps a nap that faults may end.
    #[must_use]
    pub fn or_until(self, most_us: u64) -> Nap {
        match self {
            Nap::UntilFaults(us) => Nap::UntilFaults(us.min(most_us)),
            undisturbed => undisturbed,
        }
    }

    /// Caps any nap.
    #[must_use]
    pub fn at_most(self, most_us: u64) -> Nap {
        match self {
            Nap::UntilFaults(us) => Nap::UntilFaults(us.min(most_us)),
            Nap::Undisturbed(us) => Nap::Undisturbed(us.min(most_us)),
        }
    }
}

/// How to evict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Detach a batch; store one if enough are staged.
    Detach,
    /// Store a batch detached by handlers, if enough are.
    DrainStaged,
}

/// A step other than eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Small upkeep of the store.
    Maintain,
    /// Write old pages of a nearly full pool to a device.
    ShrinkPool,
    /// The same with any pool.
    EmptyPool,
    /// Compact a sparse pool.
    CompactPool,
    /// Recompress cold pages harder.
    Recompress,
    /// Free the compressor's memory.
    ForgetCompressor,
    /// Free the pool's spare frames.
    DrainFrames,
    /// Drop state of dead children.
    Reap,
    /// Report: nothing more can be evicted.
    GiveUp,
    /// Report the run's size with nothing left to evict.
    Exhausted,
    /// Report: no tier takes pages.
    Full,
}

/// Steps in turn until one works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// The steps, in order.
    pub steps: &'static [Step],
    /// Nap after a step that worked.
    pub worked: Nap,
    /// Nap otherwise.
    pub otherwise: Nap,
}

/// Work for one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Nothing to evict.
    Tidy(Ladder),
    /// `first`, then [`eviction`] this many times unless [`after`] intervenes.
    Evict {
        /// Step before eviction.
        first: Option<Step>,
        /// Batches.
        times: u64,
    },
}

/// Plans a turn.
pub fn plan(look: &Look) -> Plan {
    let low = if look.gives_way { look.marks.giving_way() } else { look.marks.low() };
    if look.total <= low {
        return Plan::Tidy(tidy(look));
    }
    let too_much = look.total - low;
    // Giving way means the whole excess, otherwise a share.
    let part = (u128::from(too_much) * u128::from(look.mine) / u128::from(look.total)) as u64;
    let excess = if look.gives_way { too_much } else { part };
    Plan::Evict {
        // Once: further eviction would use drained frames again.
        first: (!look.was_above).then_some(Step::DrainFrames),
        times: (excess / look.batch).clamp(1, (MOST_AT_A_TIME / look.batch).max(1)),
    }
}

/// With faults, handlers detach and the reclaimer stores. It detaches itself at the limit, where
/// faults would wait, and on the way down, where few faults come.
pub fn eviction(look: &Look) -> How {
    if look.faults_come && !look.coming_down && !look.at_limit { How::DrainStaged } else { How::Detach }
}

/// Upkeep that delays no thread.
fn tidy(look: &Look) -> Ladder {
    use Step::*;
    // Meanwhile the program's touches go unobserved.
    let steps: &'static [Step] = match (look.quiet, look.total <= look.marks.register()) {
        (true, _) => &[Maintain, ShrinkPool, CompactPool, Recompress, ForgetCompressor],
        (false, true) => &[Maintain, ShrinkPool, CompactPool, ForgetCompressor],
        (false, false) => &[ForgetCompressor],
    };
    let room = look.marks.high().saturating_sub(look.total);
    let us = match (look.quiet, look.grows_unseen) {
        (true, false) => LONGEST_NAP_US,
        (true, true) if look.is_woken => {
            nap_us(room.min(MOST_UNSEEN), look.touch_rate).max((look.still_us / STILL_PART).clamp(QUIET_NAP_US, STILL_NAP_US))
        }
        (false, false) => nap_us(room, look.touch_rate),
        (_, true) => nap_us(room.min(MOST_UNSEEN), look.touch_rate),
    };
    Ladder { steps, worked: Nap::UntilFaults(SHORTEST_NAP_US), otherwise: Nap::UntilFaults(us) }
}

/// What follows a step's result. None: go on.
pub fn after(look: &Look, evicted: Evicted) -> Option<Ladder> {
    use Step::*;
    let rest = |nap| Some(Ladder { steps: &[], worked: nap, otherwise: nap });
    match evicted {
        Evicted::Progress | Evicted::LetGo => None,
        Evicted::Later => rest(Nap::UntilFaults(LATER_US)),
        Evicted::Ahead => {
            let room_us = look.marks.limit().saturating_sub(look.total) / look.touch_rate.max(1);
            rest(Nap::UntilFaults(room_us.clamp(SHORTEST_AHEAD_US, AHEAD_US)))
        }
        Evicted::Nothing => {
            let (steps, worked): (&'static [Step], u64) = if look.gives_way {
                // The pool goes last. Busier processes report exhaustion.
                (&[DrainFrames, EmptyPool, CompactPool, GiveUp], SHORTEST_NAP_US)
            } else if look.total > look.ceiling {
                (&[DrainFrames, ShrinkPool, CompactPool, Exhausted, GiveUp], 0)
            } else {
                (&[DrainFrames, Exhausted, GiveUp], 0)
            };
            let otherwise = Nap::Undisturbed(EXHAUSTED_PAUSE_US);
            Some(Ladder { steps, worked: Nap::UntilFaults(worked), otherwise })
        }
        Evicted::Full | Evicted::Searching => {
            let pause = match evicted {
                Evicted::Searching => look.search_rests_us.min(FULL_PAUSE_US),
                _ if look.above_high => EXHAUSTED_PAUSE_US,
                _ => FULL_PAUSE_US,
            };
            let steps: &'static [Step] = match (look.resorts_are_due, look.may_reap) {
                (false, _) => &[GiveUp],
                // Dead children's pages may suffice.
                (true, true) => &[GiveUp, DrainFrames, Reap, CompactPool, Full],
                (true, false) => &[GiveUp, DrainFrames, CompactPool, Full],
            };
            Some(Ladder { steps, worked: Nap::UntilFaults(0), otherwise: Nap::Undisturbed(pause) })
        }
    }
}

/// Whether last resorts are due again after this time.
pub fn are_due(since_us: u64) -> bool {
    since_us >= FULL_PAUSE_US
}

/// Nap after a full turn. On the way down the program gets half of the time.
pub fn between_turns(look: &Look, took_us: u64) -> Nap {
    Nap::UntilFaults(if look.coming_down { took_us.min(LONGEST_NAP_US) } else { 0 })
}

/// Nap after recompressing for `took_us`.
pub fn after_recompression(took_us: u64) -> Nap {
    Nap::UntilFaults((took_us * RECOMPRESS_REST).clamp(SHORTEST_NAP_US, LONGEST_NAP_US))
}

/// Bytes touched by `cpus` CPUs in a microsecond. (One thread on huge pages may exceed its part;
/// all share the bandwidth.)
pub fn touch_rate(cpus: u32) -> u64 {
    u64::from(cpus).max(LEAST_CPUS) * TOUCH_BYTES_PER_US_AND_CPU
}

/// Microseconds to touch `room` bytes.
pub fn nap_us(room: u64, touch_rate: u64) -> u64 {
    (room / touch_rate.max(1)).clamp(SHORTEST_NAP_US, LONGEST_NAP_US)
}

/// Growth allowed in a long nap: a share of `room`.
pub fn unwatched(room: u64, processes: u64) -> u64 {
    (room / processes.max(1)).max(UNWATCHED)
}

/// Nap of a process unchanged for `still_us`: doubles until all together wake as often as one
/// watched process. `number` spreads them.
pub fn long_nap_us(still_us: u64, processes: u64, number: u32) -> u64 {
    let longest = (processes * ALL_WAKE_EVERY_US).clamp(LONGEST_NAP_US, LONGEST_LONG_NAP_US);
    still_us.max(QUIET_NAP_US).min(longest / 4 * u64::from(3 + number % 3))
}
