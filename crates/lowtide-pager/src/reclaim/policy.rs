//! THE policy of reclaim: what is evicted, how much of it, when, and what follows when that does not help. A pure function of
//! what one look at the run has shown; `reclaimer.rs` looks, and carries the steps out. To change what the reclaimer does,
//! change this file and its tables; which page is evicted is decided in `victims.rs` and `refault.rs`, from which sizes on in
//! `watermarks.rs`.

use super::evicted::Evicted;
use super::watermarks::Watermarks;

/// Looks are at most this far apart, ...
pub const LONGEST_NAP_US: u64 = 100_000;
/// ... and at least this far.
pub const SHORTEST_NAP_US: u64 = 1_000;
/// In a process in which nothing happens looks are at least this far apart: something wakes the reclaimer when the program runs
/// or maps memory.
pub(super) const QUIET_NAP_US: u64 = 5_000;
/// The longer nothing has happened and its memory has not changed, the further: a nap is this part of that time, but no longer
/// than [`STILL_NAP_US`], in which memory may be touched that can't be registered.
const STILL_PART: u64 = 64;
const STILL_NAP_US: u64 = 25_000;
/// A process that can't grow unseen takes naps so long that all of a run's wake this often (`lowtide run` wakes those that get
/// CPU time meanwhile), ...
const ALL_WAKE_EVERY_US: u64 = 45_000;
/// ... but none longer than this, or a quarter more.
const LONGEST_LONG_NAP_US: u64 = 15_000_000;
/// What grows by less than this in a process is seen soon enough.
const UNWATCHED: u64 = 2 << 20;
/// What the threads of one CPU can touch in a microsecond, ...
const TOUCH_BYTES_PER_US_AND_CPU: u64 = 3_000;
/// ... and of how many CPUs at least: a program may be given another one.
const LEAST_CPUS: u64 = 2;
/// Memory that grows unseen (new mappings, forks) is looked after as if no more than this were left.
const MOST_UNSEEN: u64 = 64 << 20;
/// Fault handler threads detach pages: the reclaimer looks after this at the latest whether they still do, ...
pub(super) const AHEAD_US: u64 = 2_000;
/// ... and no sooner than this, however little room is left.
pub(super) const SHORTEST_AHEAD_US: u64 = 100;
/// An event waits to be read, or the program forks: the reclaimer tries again after this.
const LATER_US: u64 = 50;
/// No tier could take a page: the reclaimer looks again after this. (`backoff.rs` says whether it is worth while to try.)
const FULL_PAUSE_US: u64 = 100_000;
/// Nothing could be evicted: the same.
const EXHAUSTED_PAUSE_US: u64 = 10_000;
/// The size is measured again after this much was evicted: new mappings may have appeared.
const MOST_AT_A_TIME: u64 = 2 << 20;
/// For each microsecond that cold pages were compressed again the reclaimer sleeps this many: it takes a quarter of a CPU.
const RECOMPRESS_REST: u64 = 3;

/// What one look at a run has shown. Sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// The watermarks.
    pub marks: Watermarks,
    /// What the run may not exceed: the limit, or more on the way down to a limit that was lowered.
    pub ceiling: u64,
    /// What the run uses.
    pub total: u64,
    /// What this process uses of it.
    pub mine: u64,
    /// Bytes that one step evicts.
    pub batch: u64,
    /// The run was above the low watermark at the look before.
    pub was_above: bool,
    /// Faults were served since the look before: fault handler threads are there to detach pages.
    pub faults_come: bool,
    /// Nothing happened for a while.
    pub quiet: bool,
    /// For how long nothing has happened and this process has neither grown nor shrunk, in microseconds.
    pub still_us: u64,
    /// The run is above the high watermark now: it may have grown since it was measured.
    pub above_high: bool,
    /// A fault would have to evict before it is served.
    pub at_limit: bool,
    /// The program has not come down to a limit that was lowered.
    pub coming_down: bool,
    /// This process gives way to busier ones (`giving_way.rs`).
    pub gives_way: bool,
    /// Memory may also grow otherwise than by faults, which nobody sees.
    pub grows_unseen: bool,
    /// Where it does, something ends a nap when the program maps memory, or runs.
    pub is_woken: bool,
    /// There are forked children that may be gone.
    pub may_reap: bool,
    /// The last resorts were not tried for [`FULL_PAUSE_US`].
    pub resorts_are_due: bool,
    /// For how long the search for zeros rests, in microseconds.
    pub search_rests_us: u64,
    /// What a program can touch in a microsecond: see [`touch_rate`].
    pub touch_rate: u64,
}

/// For how long the reclaimer has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nap {
    /// Microseconds, or until faults pass the high watermark.
    UntilFaults(u64),
    /// Microseconds in which faults can't wake it: it could do nothing about them.
    Undisturbed(u64),
}

impl Nap {
    /// The same, but no longer than this many microseconds if faults may disturb it.
    #[must_use]
    pub fn or_until(self, most_us: u64) -> Nap {
        match self {
            Nap::UntilFaults(us) => Nap::UntilFaults(us.min(most_us)),
            undisturbed => undisturbed,
        }
    }

    /// The same, but no longer than this many microseconds.
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
    /// Detach a batch of pages, and store one if enough wait.
    Detach,
    /// Store a batch of pages that fault handler threads have detached, if enough wait.
    DrainStaged,
}

/// A step of the reclaimer beside evicting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Small upkeep of the store.
    Maintain,
    /// Write old pages from the pool to a device, if the pool is about to get full.
    ShrinkPool,
    /// The same however full it is.
    EmptyPool,
    /// Move objects of a sparse pool together.
    CompactPool,
    /// Compress cold pages of the pool again, harder.
    Recompress,
    /// Give back what only compressing needs.
    ForgetCompressor,
    /// Give free frames of the pool back to the kernel.
    DrainFrames,
    /// Drop what forked children had that are gone.
    Reap,
    /// Tell the host that nothing more can be evicted now, ...
    GiveUp,
    /// ... that the run is above its limit all the same, ...
    Exhausted,
    /// ... or that no tier takes pages.
    Full,
}

/// Steps to be tried in turn. The first that gets something done ends the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// The steps, the first to be tried first.
    pub steps: &'static [Step],
    /// After a step that got something done.
    pub worked: Nap,
    /// After all were tried.
    pub otherwise: Nap,
}

/// What a turn of the reclaimer is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// There is nothing to evict.
    Tidy(Ladder),
    /// Evict: the `first` step, then [`eviction`] this many times, as long as [`after`] says nothing else.
    Evict {
        /// What to do before.
        first: Option<Step>,
        /// Batches.
        times: u64,
    },
}

/// What to do about a look.
pub fn plan(look: &Look) -> Plan {
    let low = if look.gives_way { look.marks.giving_way() } else { look.marks.low() };
    if look.total <= low {
        return Plan::Tidy(tidy(look));
    }
    let too_much = look.total - low;
    // A process that gives way evicts all that is too much; otherwise each evicts its part.
    let part = (u128::from(too_much) * u128::from(look.mine) / u128::from(look.total)) as u64;
    let excess = if look.gives_way { too_much } else { part };
    Plan::Evict {
        // What is free already goes first. While eviction goes on it would only take the drained frames again.
        first: (!look.was_above).then_some(Step::DrainFrames),
        times: (excess / look.batch).clamp(1, (MOST_AT_A_TIME / look.batch).max(1)),
    }
}

/// How to evict. Where faults come, their handler threads detach pages and the reclaimer only stores them; but not at the
/// limit, where faults would wait for room, and not on the way down to a limit that was lowered, where few faults bring pages
/// in.
pub fn eviction(look: &Look) -> How {
    if look.faults_come && !look.coming_down && !look.at_limit { How::DrainStaged } else { How::Detach }
}

/// Nothing to evict: the pool's upkeep, if nobody is kept waiting by it.
fn tidy(look: &Look) -> Ladder {
    use Step::*;
    // Well below the limit, or when nothing happens: while this works, nobody watches what the program touches.
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

/// What to do after a step of eviction that came to `evicted`; None: go on.
pub fn after(look: &Look, evicted: Evicted) -> Option<Ladder> {
    use Step::*;
    let rest = |nap| Some(Ladder { steps: &[], worked: nap, otherwise: nap });
    match evicted {
        Evicted::Progress => None,
        Evicted::Later => rest(Nap::UntilFaults(LATER_US)),
        Evicted::Ahead => {
            let room_us = look.marks.limit().saturating_sub(look.total) / look.touch_rate.max(1);
            rest(Nap::UntilFaults(room_us.clamp(SHORTEST_AHEAD_US, AHEAD_US)))
        }
        Evicted::Nothing => {
            let (steps, worked): (&'static [Step], u64) = if look.gives_way {
                // What was compressed goes last. What the others can't move is not for this process to find out.
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
                // What dead children had may be all that is needed. Room inside the pool's spans is the last resort.
                (true, true) => &[GiveUp, DrainFrames, Reap, CompactPool, Full],
                (true, false) => &[GiveUp, DrainFrames, CompactPool, Full],
            };
            Some(Ladder { steps, worked: Nap::UntilFaults(0), otherwise: Nap::Undisturbed(pause) })
        }
    }
}

/// Whether last resorts that were tried this many microseconds ago are due again.
pub fn are_due(since_us: u64) -> bool {
    since_us >= FULL_PAUSE_US
}

/// After all that was planned was evicted, which took this many microseconds. Far above a limit that was lowered the program
/// has half of the time.
pub fn between_turns(look: &Look, took_us: u64) -> Nap {
    Nap::UntilFaults(if look.coming_down { took_us.min(LONGEST_NAP_US) } else { 0 })
}

/// After cold pages were compressed again for this many microseconds.
pub fn after_recompression(took_us: u64) -> Nap {
    Nap::UntilFaults((took_us * RECOMPRESS_REST).clamp(SHORTEST_NAP_US, LONGEST_NAP_US))
}

/// What a program that may run on `cpus` CPUs can touch, in bytes a microsecond. (One thread that touches huge pages may be
/// faster than its part of this; all of them share what the memory can do.)
pub fn touch_rate(cpus: u32) -> u64 {
    u64::from(cpus).max(LEAST_CPUS) * TOUCH_BYTES_PER_US_AND_CPU
}

/// How many microseconds to sleep when `room` bytes may be touched, at `touch_rate`, before something has to happen.
pub fn nap_us(room: u64, touch_rate: u64) -> u64 {
    (room / touch_rate.max(1)).clamp(SHORTEST_NAP_US, LONGEST_NAP_US)
}

/// What a process of a run of so many may grow by while its reclaimer takes a long nap, where `room` bytes may be touched: its
/// part of that.
pub fn unwatched(room: u64, processes: u64) -> u64 {
    (room / processes.max(1)).max(UNWATCHED)
}

/// For how long the reclaimer of a process sleeps that has not changed for `still_us` microseconds and can't grow unseen: twice
/// as long each time, until all processes of the run together wake as often as one does that is watched. `number` tells them
/// apart: they are not to wake all at once.
pub fn long_nap_us(still_us: u64, processes: u64, number: u32) -> u64 {
    let longest = (processes * ALL_WAKE_EVERY_US).clamp(LONGEST_NAP_US, LONGEST_LONG_NAP_US);
    still_us.max(QUIET_NAP_US).min(longest / 4 * u64::from(3 + number % 3))
}
