//! The statistics of a run: the JSON object of docs/statistics.md and the summary line. `list.rs`
//! defines them; [`fills`] asks the processes for the fill of clusters.

pub mod fills;
pub mod list;
mod refaults;

pub use list::{Area, Evictions, Faults, Memory, Pages, Pool, Remote, RingRecords, Work, Writeback};
pub use refaults::{KINDS as REFAULT_KINDS, Refaults};

use crate::live::Live;
use crate::live::areas::{Listed, State};
use crate::live::processes::{self, Process};
use crate::supervisor::tree::{AreaNow, Gauges};
use lowtide_bpf::record::Why;
use lowtide_config::size;
use lowtide_core::lock::rank;
use lowtide_core::store::{AreaState, FillWords};
use lowtide_core::vm::PAGE_SIZE;
use lowtide_remote::counts::{Counts as RemoteCounts, Reads};
use lowtide_wire::segment::{
    Counters, LATENCY_BUCKETS, Proc, Segment, latency_bucket, latency_floor_ns, latency_quantile_ns, proc_state,
};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PAGE: u64 = PAGE_SIZE as u64;
const WORDS_SHOWN: usize = 8;

/// The object of `--stats` and `lowtide stat`. Counts are of the whole run and all processes;
/// gauges (`ram_now`, `pool_bytes` and so on) are of the last moment at which a process had
/// registered memory, see [`crate::supervisor::tree::Tree::gauges`].
#[derive(Serialize)]
#[allow(missing_docs)] // docs/statistics.md says what they are
pub struct Stats {
    pub schema: u32,
    pub program: String,
    pub pid: u32,
    pub pids: Vec<u32>,
    pub elapsed_seconds: f64,
    #[serde(flatten)]
    pub memory: Memory,
    /// Bytes of pages in the pool to their compressed bytes, when it held most; 0 if it never held
    /// any.
    pub compression_ratio: f64,
    pub pages: Pages,
    pub faults: Faults,
    pub ring_records: RingRecords,
    pub evictions: Evictions,
    pub work: Work,
    /// Those of lowtide's locks that threads have waited for.
    pub locks: Vec<LockWaits>,
    pub pool: Pool,
    /// Refaults by evictions since the page's own: up to an 8th of the limit, a quarter, all of it,
    /// more.
    pub refaults: [u64; REFAULT_KINDS],
    pub refault_distances: Refaults,
    pub folios: Folios,
    pub writeback: Writeback,
    pub fault_latency_us: Latency,
    /// Lower bound in microseconds and count of each bucket that is not empty.
    pub fault_latency_histogram: Vec<(f64, u64)>,
    pub stall_seconds: Stall,
    pub areas: Vec<Area>,
    pub processes: Vec<Process>,
    pub warnings: Vec<String>,
}

/// A lower bound of the pages filled with a word (exact up to 16 different words).
#[derive(Debug, Clone, Serialize)]
pub struct SameFilledWord {
    /// In hexadecimal, as the processor reads it: `0x` and 16 digits. (JSON readers round large
    /// numbers.)
    pub word: String,
    pub pages: u64,
}

/// By order: single pages first, then pairs, up to runs of 512 pages.
#[derive(Serialize)]
pub struct Folios {
    pub whole: Vec<u64>,
    /// Folios split for lack of a free run of slots.
    pub split: Vec<u64>,
}

/// Microseconds; percentiles are exact to the 12 % of the histogram's buckets.
#[derive(Serialize, Default, PartialEq, Debug, Clone)]
#[allow(missing_docs)]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// Waits for the locks of one rank.
#[derive(Serialize, PartialEq, Debug)]
pub struct LockWaits {
    /// As in [`rank::name`].
    pub lock: &'static str,
    /// Times that a thread found the lock held.
    pub waits: u64,
    pub us: f64,
    pub longest_us: f64,
}

impl LockWaits {
    fn list(counters: &Counters) -> Vec<LockWaits> {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let us = |counter: &AtomicU64| rounded(of(counter) as f64 / 1e3);
        let all = (0..rank::RANKS).map(|i| LockWaits {
            lock: rank::name(i as u8),
            waits: of(&counters.lock_waits[i]),
            us: us(&counters.lock_wait_ns[i]),
            longest_us: us(&counters.lock_wait_max_ns[i]),
        });
        all.filter(|lock| lock.waits > 0).collect()
    }
}

#[derive(Serialize)]
#[allow(missing_docs)]
pub struct Stall {
    pub some: f64,
    /// Always null: not measured.
    pub full: Option<f64>,
}

impl Stats {
    pub fn new(run: &Live<'_>, gauges: &Gauges, elapsed: Duration) -> Stats {
        let segment = run.shared.segment();
        let (counters, latency) = (totals(segment), latencies(segment));
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let fullest = run.tree.fullest();
        let in_pool = fullest.now_stored.saturating_sub(fullest.now_on_device) * PAGE;
        let ratio = if fullest.pool_stored > 0 { in_pool as f64 / fullest.pool_stored as f64 } else { 0.0 };
        let refaults = Refaults::new(&counters, run.limits.ram());
        let locks = LockWaits::list(&counters);
        let areas = run.areas.list().into_iter().map(|area| Area::new(area, gauges)).collect();
        Stats {
            schema: 1,
            program: run.program.clone(),
            pid: std::process::id(),
            pids: run.tree.pids().to_vec(),
            elapsed_seconds: rounded(elapsed.as_secs_f64()),
            memory: Memory {
                ram_limit: run.limits.ram(),
                ram_now: gauges.ram,
                ram_peak: of(&segment.ram_peak),
                resident_bytes: gauges.ram.saturating_sub(gauges.own),
                own_bytes: gauges.own,
                staged_bytes: gauges.staged,
                pool_bytes: gauges.pool,
                pool_stored_bytes: gauges.pool_stored,
                pool_limit: run.limits.pool(),
            },
            compression_ratio: rounded(ratio),
            pages: Pages {
                same_filled_words: most_words(segment),
                on_device: gauges.now_on_device,
                ..Pages::counted(&counters)
            },
            faults: Faults::counted(&counters),
            ring_records: RingRecords::new(&run.in_thread.counts()),
            evictions: Evictions::counted(&counters),
            work: Work {
                lock_waits: locks.iter().map(|lock| lock.waits).sum(),
                lock_wait_seconds: rounded(locks.iter().map(|lock| lock.us).sum::<f64>() / 1e6),
                ..Work::counted(&counters)
            },
            locks,
            pool: Pool::counted(&counters),
            refaults: refaults.in_four(),
            refault_distances: refaults,
            folios: Folios {
                whole: counters.folios.iter().map(of).collect(),
                split: counters.folios_split.iter().map(of).collect(),
            },
            writeback: Writeback::counted(&counters),
            fault_latency_us: percentiles(&latency, of(&counters.latency_max_ns)),
            fault_latency_histogram: histogram(&latency),
            stall_seconds: Stall { some: rounded(of(&counters.stall_some_us) as f64 / 1e6), full: None },
            areas,
            processes: processes::list(segment),
            warnings: run.warnings.clone(),
        }
    }

    pub fn summary(&self, managed: bool) -> String {
        let elapsed = self.elapsed_seconds;
        if !managed {
            return format!("ram not known, the program was not managed, {elapsed:.1} s");
        }
        let mut line = format!("ram peak {} of {}, ", size::show(self.memory.ram_peak), size::show(self.memory.ram_limit));
        let (out, zero, back) = (self.evictions.pages, self.pages.zero, self.pages.loaded);
        if out == 0 {
            line += "no pages out";
        } else {
            line += &format!("{out} pages out ({zero} zero), {back} in");
        }
        if self.compression_ratio > 0.0 {
            line += &format!(", {:.2}:1", self.compression_ratio);
        }
        line + &format!(", {elapsed:.1} s")
    }
}

/// Counts of all processes, dead and alive.
pub fn totals(segment: &Segment) -> Counters {
    let sum = Counters::default();
    sum.fold(&segment.dead);
    counted(segment).for_each(|p| sum.fold(&p.counters));
    sum
}

/// Latencies of all processes, dead and alive, in buckets.
pub fn latencies(segment: &Segment) -> [u64; LATENCY_BUCKETS] {
    let mut sum = [0; LATENCY_BUCKETS];
    for from in std::iter::once(&segment.dead_latency).chain(counted(segment).map(|p| &p.latency)) {
        sum.iter_mut().zip(from).for_each(|(to, from)| *to += from.load(Ordering::Relaxed));
    }
    sum
}

fn counted(segment: &Segment) -> impl Iterator<Item = &Proc> {
    segment.used_procs().iter().filter(|p| p.state.load(Ordering::Acquire) != proc_state::FREE)
}

#[derive(Debug, Clone)]
pub struct Histogram {
    pub sum_seconds: f64,
    pub count: u64,
    /// Upper bounds in seconds, the last one infinite, and the count since the bound before.
    pub buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// Of the faults of all processes.
    pub fn of_faults(segment: &Segment) -> Histogram {
        let service_ns: u64 = totals(segment).service_ns.iter().map(|ns| ns.load(Ordering::Relaxed)).sum();
        Histogram::new(&latencies(segment), service_ns)
    }

    /// Of the page requests to an area's servers.
    pub fn of_reads(counts: &RemoteCounts) -> Histogram {
        let Reads { buckets, sum_ns, .. } = counts.reads();
        Histogram::new(&buckets, sum_ns)
    }

    fn new(latencies: &[u64; LATENCY_BUCKETS], sum_ns: u64) -> Histogram {
        let octaves = latencies.chunks(8).enumerate();
        let bound =
            |i: usize| if (i + 1) * 8 < LATENCY_BUCKETS { latency_floor_ns((i + 1) * 8) as f64 / 1e9 } else { f64::INFINITY };
        Histogram {
            sum_seconds: sum_ns as f64 / 1e9,
            count: latencies.iter().sum(),
            buckets: octaves.map(|(i, counts)| (bound(i), counts.iter().sum())).collect(),
        }
    }
}

impl RingRecords {
    /// `counts`: in the order of [`Why::ALL`].
    fn new(counts: &[u64; Why::ALL.len()]) -> RingRecords {
        let of = |why: Why| counts[why as usize];
        RingRecords {
            protected: of(Why::Protected),
            kernel_mode: of(Why::KernelMode),
            another_process: of(Why::OtherProcess),
            traced: of(Why::Traced),
            signal_blocked: of(Why::Blocked),
            another_handler: of(Why::OtherHandler),
            no_stack: of(Why::NoStack),
            unknown_stack: of(Why::UnknownStack),
            seccomp: of(Why::Filtered),
            user_dispatch: of(Why::Dispatched),
            io_uring: of(Why::IoUring),
            declined: of(Why::Declined),
            not_sent: of(Why::NotSent),
            event: of(Why::Event),
            ring_full: of(Why::Lost),
            asked_already: of(Why::Again),
        }
    }
}

impl Area {
    fn new(area: Listed, gauges: &Gauges) -> Area {
        let now = area.place.and_then(|place| gauges.areas.get(place)).filter(|_| area.state != State::Off);
        let state = match area.state {
            State::On => now.map_or("active", state),
            State::Emptying => "emptying",
            State::Off => "off",
        };
        Area {
            spec: area.spec,
            prio: area.prio.into(),
            size: area.size,
            used: now.map_or(0, |now| now.used),
            state,
            reads: area.counts.reads,
            writes: area.counts.writes,
            read_bytes: area.counts.read_bytes,
            write_bytes: area.counts.write_bytes,
            errors: area.counts.errors,
            remote: area.remote.map(|counts| Remote::new(&counts)),
        }
    }
}

impl Remote {
    fn new(counts: &RemoteCounts) -> Remote {
        let Reads { buckets, slowest_ns, .. } = counts.reads();
        Remote {
            pages_written: counts.pages_written.get(),
            pages_read: counts.pages_read.get(),
            sent_bytes: counts.sent_bytes.get(),
            received_bytes: counts.received_bytes.get(),
            reconnects: counts.reconnects.get(),
            failovers: counts.failovers.get(),
            second_copies_read: counts.second_copies_read.get(),
            copies_lost: counts.copies_lost.get(),
            copies_wrong: counts.copies_wrong.get(),
            copies_together: counts.copies_together.get(),
            read_latency_us: percentiles(&buckets, slowest_ns),
        }
    }
}

/// Some processes may find the area full while others still have room in their files.
fn state(now: &AreaNow) -> &'static str {
    let any = |state| now.states[state as usize] > 0;
    match () {
        () if any(AreaState::Failing) => "failing",
        () if any(AreaState::Full) && !any(AreaState::Active) => "full",
        () => "active",
    }
}

/// The words of same-filled pages of all processes, dead and alive.
fn most_words(segment: &Segment) -> Vec<SameFilledWord> {
    let sum = FillWords::default();
    sum.fold(&segment.dead_words);
    counted(segment).for_each(|p| sum.fold(&p.same_filled_words));
    let most = sum.most().into_iter().filter(|w| w.pages > 0).take(WORDS_SHOWN);
    most.map(|w| SameFilledWord { word: format!("{:#018x}", w.word), pages: w.pages }).collect()
}

fn histogram(buckets: &[u64; LATENCY_BUCKETS]) -> Vec<(f64, u64)> {
    let used = buckets.iter().enumerate().filter(|(_, count)| **count > 0);
    used.map(|(i, count)| (rounded(latency_floor_ns(i) as f64 / 1e3), *count)).collect()
}

fn percentiles(buckets: &[u64; LATENCY_BUCKETS], max_ns: u64) -> Latency {
    let at = |share| {
        latency_quantile_ns(buckets, share).map_or(0.0, |ns| {
            // The maximum may follow its count.
            ns.min(max_ns.max(latency_floor_ns(latency_bucket(ns)))) as f64 / 1e3
        })
    };
    Latency {
        p50: rounded(at(0.5)),
        p90: rounded(at(0.9)),
        p99: rounded(at(0.99)),
        p999: rounded(at(0.999)),
        max: rounded(max_ns as f64 / 1e3),
    }
}

/// To three decimals.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_counted_under_its_name() {
        let records = RingRecords::new(&std::array::from_fn(|i| 100 + i as u64)).figures();
        let found: Vec<_> = records.iter().map(|figure| (figure.key.to_owned(), figure.value)).collect();
        let wanted = Why::ALL.map(|why| (why.name().replace(' ', "_"), list::Number::Whole(100 + why as u64)));
        assert_eq!(found, wanted);
    }

    #[test]
    fn percentiles_of_a_known_load() {
        let mut buckets = [0; LATENCY_BUCKETS];
        assert_eq!(percentiles(&buckets, 0), Latency::default());
        buckets[latency_bucket(10_000)] = 950;
        buckets[latency_bucket(1_000_000)] = 50;
        let found = percentiles(&buckets, 1_000_500);
        assert!((found.p50 / 10.0 - 1.0).abs() < 0.13, "{found:?}");
        assert!((found.p90 / 10.0 - 1.0).abs() < 0.13, "{found:?}");
        assert!((found.p99 / 1000.0 - 1.0).abs() < 0.13, "{found:?}");
        assert_eq!(found.max, 1000.5);
        assert!(found.p999 <= found.max);
    }
}
