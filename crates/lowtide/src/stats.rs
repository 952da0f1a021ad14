//! The statistics of a run: the JSON object of docs/statistics.md and the summary line.

use crate::live::Live;
use crate::live::areas::{Listed, State};
use crate::live::processes::{self, Process};
use crate::size;
use crate::tree::{AreaNow, Gauges};
use lowtide_core::store::{AreaState, FillWords};
use lowtide_pager::segment::{Counters, LATENCY_BUCKETS, Segment, area_state, latency_floor_ns, proc_state};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PAGE: u64 = 4096;
/// Most words in `pages.same_filled_words`.
const WORDS_SHOWN: usize = 8;

/// What `--stats` writes and `lowtide stat` shows. Counts are of the whole run, all processes together; what is held at one moment (`ram_now`, `pool_bytes`
/// and so on) is of the last moment at which a process had adopted memory, see [`crate::tree::Tree::gauges`].
#[derive(Serialize)]
#[allow(missing_docs)] // docs/statistics.md says what they are
pub struct Stats {
    pub schema: u32,
    pub program: String,
    /// Of `lowtide run`.
    pub pid: u32,
    pub pids: Vec<u32>,
    pub elapsed_seconds: f64,
    pub ram_limit: u64,
    pub ram_now: u64,
    pub ram_peak: u64,
    pub resident_bytes: u64,
    pub own_bytes: u64,
    pub staged_bytes: u64,
    pub pool_bytes: u64,
    pub pool_stored_bytes: u64,
    pub pool_limit: u64,
    /// Bytes of the pages in the pool to bytes of their compressed objects, when it held most; 0 if it never held any.
    pub compression_ratio: f64,
    pub pages: Pages,
    pub faults: Faults,
    pub evictions: Evictions,
    pub work: Work,
    /// Pages that were missed, by how many others had been evicted since they had: up to an 8th of the limit, a quarter, all of it, more.
    pub refaults: Vec<u64>,
    pub folios: Folios,
    pub writeback: Writeback,
    pub fault_latency_us: Latency,
    /// The histogram behind it: the lower bound of each bucket that is not empty, in microseconds, and how many faults are in it.
    pub fault_latency_histogram: Vec<(f64, u64)>,
    pub stall_seconds: Stall,
    pub areas: Vec<Area>,
    /// Those that there are now.
    pub processes: Vec<Process>,
    pub warnings: Vec<String>,
}

/// Pages by what became of them when they left, over the whole run; `on_device` is what is there at the last moment.
#[derive(Serialize)]
#[allow(missing_docs)]
pub struct Pages {
    pub stored: u64,
    pub zero: u64,
    pub same_filled: u64,
    /// The words that most same-filled pages repeat.
    pub same_filled_words: Vec<SameFilledWord>,
    pub incompressible: u64,
    /// Cold pages that were compressed again with zstd, and by how many bytes they became smaller.
    pub recompressed: u64,
    pub recompressed_bytes: u64,
    pub on_device: u64,
    /// Pages that came back, read-ahead included.
    pub loaded: u64,
}

/// How many pages were filled with a word, at least (exactly, unless there are more than 16 different words).
#[derive(Serialize)]
pub struct SameFilledWord {
    /// In hexadecimal, as the processor reads it: `0x` and 16 digits. (JSON readers round large numbers.)
    pub word: String,
    /// How many.
    pub pages: u64,
}

#[derive(Serialize)]
#[allow(missing_docs)]
pub struct Faults {
    pub total: u64,
    pub zero: u64,
    pub staged: u64,
    pub pool: u64,
    pub device: u64,
    pub first_touch: u64,
    pub read_ahead_pages: u64,
    pub read_ahead_used: u64,
}

#[derive(Serialize)]
#[allow(missing_docs)]
pub struct Evictions {
    pub pages: u64,
    pub clean: u64,
    pub direct: u64,
    pub background: u64,
    pub moved_calls: u64,
}

/// What lowtide's own threads do, and wait for.
#[derive(Serialize)]
pub struct Work {
    /// CPU that they have had, in the processes that adopted memory.
    pub cpu_seconds: f64,
    /// Times that a monitor slept until something came.
    pub monitor_wakeups: u64,
    /// Times that it found nothing then, or gave up.
    pub monitor_wakeups_vain: u64,
    /// Time in which a thread of the program waited while a monitor detached pages that are not its own.
    pub staging_ahead_seconds: f64,
    /// Times that a thread had to sleep for the lock that serving, evicting and following events share.
    pub space_lock_sleeps: u64,
    /// For how long.
    pub space_lock_seconds: f64,
}

/// By order: the first number is of single pages, the next of pairs, the last of runs of 512 pages.
#[derive(Serialize)]
pub struct Folios {
    /// Folios that went out whole: to contiguous slots.
    pub whole: Vec<u64>,
    /// Folios that were split because no run of slots of their size was free.
    pub split: Vec<u64>,
}

#[derive(Serialize)]
#[allow(missing_docs)]
pub struct Writeback {
    pub pages: u64,
    pub ios: u64,
    pub bytes: u64,
}

/// Microseconds of fault service; the percentiles are exact to the 12 % of the histogram's buckets.
#[derive(Serialize, Default, PartialEq, Debug)]
#[allow(missing_docs)]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

#[derive(Serialize)]
#[allow(missing_docs)]
pub struct Stall {
    pub some: f64,
    /// Not measured yet: null.
    pub full: Option<f64>,
}

/// A swap area, with what all processes did there.
#[derive(Serialize)]
#[allow(missing_docs)]
pub struct Area {
    pub spec: String,
    pub prio: i32,
    pub size: u64,
    /// Bytes of pages that are there, without those that a process has from its parent.
    pub used: u64,
    /// `active`, `full`, or `failing` if the latest write of a process failed; `emptying` while it is being taken off, then `off`.
    pub state: &'static str,
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub errors: u64,
}

impl Stats {
    /// The statistics of a run after this time. `gauges`: what is said to be held.
    pub fn new(run: &Live<'_>, gauges: &Gauges, elapsed: Duration) -> Stats {
        let segment = run.shared.segment();
        let (counters, latency) = totals(segment);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let fullest = run.tree.fullest();
        let in_pool = fullest.now_stored.saturating_sub(fullest.now_on_device) * PAGE;
        let ratio = if fullest.pool_stored > 0 { in_pool as f64 / fullest.pool_stored as f64 } else { 0.0 };
        let areas = run.areas.list().into_iter().map(|area| Area::new(area, gauges)).collect();
        Stats {
            schema: 1,
            program: run.program.clone(),
            pid: std::process::id(),
            pids: run.tree.pids().to_vec(),
            elapsed_seconds: rounded(elapsed.as_secs_f64()),
            ram_limit: run.limits.ram(),
            ram_now: gauges.ram,
            ram_peak: of(&segment.ram_peak),
            resident_bytes: gauges.ram.saturating_sub(gauges.own),
            own_bytes: gauges.own,
            staged_bytes: gauges.staged,
            pool_bytes: gauges.pool,
            pool_stored_bytes: gauges.pool_stored,
            pool_limit: run.limits.pool(),
            compression_ratio: rounded(ratio),
            pages: Pages {
                stored: of(&counters.stored_pages),
                zero: of(&counters.zero_pages),
                same_filled: of(&counters.same_filled_pages),
                same_filled_words: most_words(segment),
                incompressible: of(&counters.incompressible_pages),
                recompressed: of(&counters.recompressed_pages),
                recompressed_bytes: of(&counters.recompressed_bytes),
                on_device: gauges.now_on_device,
                loaded: of(&counters.pages_in),
            },
            faults: Faults {
                total: of(&counters.faults_total),
                zero: of(&counters.faults_zero),
                staged: of(&counters.faults_staged),
                pool: of(&counters.faults_pool),
                device: of(&counters.faults_device),
                first_touch: of(&counters.faults_first_touch),
                read_ahead_pages: of(&counters.read_ahead_pages),
                read_ahead_used: of(&counters.read_ahead_used),
            },
            evictions: Evictions {
                pages: of(&counters.evictions_pages),
                clean: of(&counters.evictions_clean),
                direct: of(&counters.evictions_direct),
                background: of(&counters.evictions_background),
                moved_calls: of(&counters.moved_calls),
            },
            work: Work {
                cpu_seconds: rounded(of(&counters.cpu_us) as f64 / 1e6),
                monitor_wakeups: of(&counters.monitor_wakeups),
                monitor_wakeups_vain: of(&counters.monitor_wakeups_vain),
                staging_ahead_seconds: rounded(of(&counters.staging_ahead_ns) as f64 / 1e9),
                space_lock_sleeps: of(&counters.space_lock_sleeps),
                space_lock_seconds: rounded(of(&counters.space_lock_wait_ns) as f64 / 1e9),
            },
            refaults: counters.refaults.iter().map(of).collect(),
            folios: Folios {
                whole: counters.folios.iter().map(of).collect(),
                split: counters.folios_split.iter().map(of).collect(),
            },
            writeback: Writeback {
                pages: of(&counters.writeback_pages),
                ios: of(&counters.writeback_ios),
                bytes: of(&counters.writeback_bytes),
            },
            fault_latency_us: percentiles(&latency, of(&counters.latency_max_ns)),
            fault_latency_histogram: histogram(&latency),
            stall_seconds: Stall { some: rounded(of(&counters.stall_some_us) as f64 / 1e6), full: None },
            areas,
            processes: processes::list(segment),
            warnings: run.warnings.clone(),
        }
    }

    /// The line at exit.
    pub fn summary(&self, managed: bool) -> String {
        let elapsed = self.elapsed_seconds;
        if !managed {
            return format!("ram not known, the program was not managed, {elapsed:.1} s");
        }
        let mut line = format!("ram peak {} of {}, ", size::show(self.ram_peak), size::show(self.ram_limit));
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

/// Counts and latencies of all processes, dead and alive.
fn totals(segment: &Segment) -> (Counters, [u64; LATENCY_BUCKETS]) {
    let sum = Counters::default();
    sum.fold(&segment.dead);
    let mut latency = [0; LATENCY_BUCKETS];
    let mut add = |from: &[AtomicU64; LATENCY_BUCKETS]| {
        for (to, from) in latency.iter_mut().zip(from) {
            *to += from.load(Ordering::Relaxed);
        }
    };
    add(&segment.dead_latency);
    for p in segment.used_procs().iter().filter(|p| p.state.load(Ordering::Acquire) != proc_state::FREE) {
        sum.fold(&p.counters);
        add(&p.latency);
    }
    (sum, latency)
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
        }
    }
}

/// The state of a swap area: some processes may find it full while others still have room in their files.
fn state(now: &AreaNow) -> &'static str {
    let any = |state| now.states[area_state(state) as usize] > 0;
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
    for p in segment.used_procs().iter().filter(|p| p.state.load(Ordering::Acquire) != proc_state::FREE) {
        sum.fold(&p.same_filled_words);
    }
    let most = sum.most().into_iter().filter(|w| w.pages > 0).take(WORDS_SHOWN);
    most.map(|w| SameFilledWord { word: format!("{:#018x}", w.word), pages: w.pages }).collect()
}

fn histogram(buckets: &[u64; LATENCY_BUCKETS]) -> Vec<(f64, u64)> {
    let used = buckets.iter().enumerate().filter(|(_, count)| **count > 0);
    used.map(|(i, count)| (rounded(latency_floor_ns(i) as f64 / 1e3), *count)).collect()
}

fn percentiles(buckets: &[u64; LATENCY_BUCKETS], max_ns: u64) -> Latency {
    let total: u64 = buckets.iter().sum();
    if total == 0 {
        return Latency::default();
    }
    let at = |share: f64| {
        let wanted = (total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (i, count) in buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                // The middle of the bucket; the last one has no end.
                let floor = latency_floor_ns(i);
                let middle = if i + 1 < LATENCY_BUCKETS { floor.midpoint(latency_floor_ns(i + 1)) } else { floor };
                return middle.min(max_ns.max(floor)) as f64 / 1e3;
            }
        }
        max_ns as f64 / 1e3
    };
    Latency {
        p50: rounded(at(0.5)),
        p90: rounded(at(0.9)),
        p99: rounded(at(0.99)),
        p999: rounded(at(0.999)),
        max: rounded(max_ns as f64 / 1e3),
    }
}

/// Three decimals are enough.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_pager::segment::latency_bucket;

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
