//! The segment of a run: one piece of shared memory that holds the settings (written once by `lowtide run`), one [`Proc`] for
//! each process of the tree (written by its agent), and the way up for warnings and for the message of a fatal end.
//!
//! `lowtide run` creates it as a memfd and keeps the descriptor; agents map it through `/proc/PID/fd/N`. All fields are atomics
//! or are written before the first agent starts. Nobody locks anything in it, so a process may die at any instruction.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lowtide_core::slot::ORDERS;
use lowtide_core::store::{AreaState, FILL_WORDS, FillWord, FillWords, MAX_AREAS};

/// First word of a segment.
pub const MAGIC: u64 = 0x6c6f_7774_6964_6501;
/// Layout version; the agent refuses another one.
pub const VERSION: u32 = 4;
/// Processes of one run that can be alive at the same time and be counted.
pub const MAX_PROCS: usize = 1024;
/// Kept warnings of a run; later ones are counted only.
pub const MAX_WARNINGS: usize = 16;
/// Buckets of the latency histogram: see [`latency_bucket`].
pub const LATENCY_BUCKETS: usize = 160;

/// Environment variable that holds the path of the segment (`/proc/PID/fd/N`).
pub const ENV_SEGMENT: &str = "LOWTIDE_SEGMENT";

/// `Settings::when_full`: go over the limit with one warning.
pub const WHEN_FULL_EXCEED: u32 = 0;
/// `Settings::when_full`: stop the program with a message.
pub const WHEN_FULL_STOP: u32 = 1;

/// `Settings::codec`: LZ4.
pub const CODEC_LZ4: u32 = 0;
/// `Settings::codec`: zstd at `Settings::codec_level`.
pub const CODEC_ZSTD: u32 = 1;

/// `SwapArea::kind`: there is no such area.
pub const SWAP_NONE: u32 = 0;
/// `SwapArea::kind`: each process has an unnamed file in `SwapArea::dir`.
pub const SWAP_DIR: u32 = 1;
/// `SwapArea::kind`: `SwapArea::file`, which is the first process's that claims it (`SwapArea::claimed`); processes that come later
/// have unnamed files in `SwapArea::dir`.
pub const SWAP_FILE: u32 = 2;

/// A swap area of the run. Without any, evicted pages stay in compressed RAM.
#[repr(C)]
pub struct SwapArea {
    /// Most bytes of all its files together.
    pub size: u64,
    /// Bytes of its files in use by all processes of the run: agents add before they grow a file.
    pub used: AtomicU64,
    /// One of the `SWAP_` values.
    pub kind: u32,
    /// Areas of higher priority are used first; those of the same in turn.
    pub prio: i16,
    /// 1: the space of free clusters goes back to the file system.
    pub discard: u16,
    /// 1: a process of the run has `file`. It is not given to another when that one is gone, because its forked children may still
    /// read it.
    pub claimed: AtomicU32,
    /// Directory of the unnamed files, absolute, NUL-terminated. Empty: there are none (`file` is a block device).
    pub dir: [u8; 1024],
    /// The named file, as a descriptor of `lowtide run` (`/proc/PID/fd/N`), which holds its lock. NUL-terminated.
    pub file: [u8; 64],
    /// What the user calls it, for messages. NUL-terminated.
    pub file_name: [u8; 256],
}

/// What the run was asked for. Written by `lowtide run` before the program starts, except for the atomics.
#[repr(C)]
pub struct Settings {
    /// RAM limit of the whole tree in bytes.
    pub ram_limit: AtomicU64,
    /// Pool limit of the whole tree in bytes.
    pub pool_limit: AtomicU64,
    /// One of the `CODEC_` values.
    pub codec: u32,
    /// zstd level; 0 is zstd's default.
    pub codec_level: i32,
    /// One of the `WHEN_FULL_` values.
    pub when_full: u32,
    /// 1: agents say on the program's standard error what they adopt and why.
    pub verbose: u32,
    /// The swap areas, in the order in which they were given.
    pub swap: [SwapArea; MAX_AREAS],
    /// The value that LD_PRELOAD must begin with, NUL-terminated: agents put it back in front when the program changes it.
    pub preload: [u8; 64],
}

/// Counters of one process image, or of all dead ones. Pages are 4 KiB pages.
#[repr(C)]
#[derive(Default)]
#[allow(missing_docs)] // the names are those of INTERFACE.md's statistics
pub struct Counters {
    pub faults_total: AtomicU64,
    pub faults_zero: AtomicU64,
    pub faults_staged: AtomicU64,
    pub faults_pool: AtomicU64,
    pub faults_device: AtomicU64,
    pub faults_first_touch: AtomicU64,
    pub read_ahead_pages: AtomicU64,
    pub read_ahead_used: AtomicU64,
    /// Pages that came back in, read-ahead included, first touches not.
    pub pages_in: AtomicU64,
    pub evictions_pages: AtomicU64,
    pub evictions_clean: AtomicU64,
    pub evictions_direct: AtomicU64,
    pub evictions_background: AtomicU64,
    pub moved_calls: AtomicU64,
    pub stored_pages: AtomicU64,
    pub zero_pages: AtomicU64,
    pub same_filled_pages: AtomicU64,
    pub incompressible_pages: AtomicU64,
    pub recompressed_pages: AtomicU64,
    /// Bytes by which these became smaller.
    pub recompressed_bytes: AtomicU64,
    pub writeback_pages: AtomicU64,
    pub writeback_ios: AtomicU64,
    pub writeback_bytes: AtomicU64,
    /// Folios that got contiguous slots, by order, and those that were split for want of them.
    pub folios: [AtomicU64; ORDERS],
    pub folios_split: [AtomicU64; ORDERS],
    /// Microseconds in which at least one thread waited for a page.
    pub stall_some_us: AtomicU64,
    /// Longest fault service in nanoseconds.
    pub latency_max_ns: AtomicU64,
}

impl Counters {
    /// Number of counters, for folding them as words.
    pub const WORDS: usize = size_of::<Counters>() / 8;

    /// All counters as a slice of words, in the order of declaration.
    pub fn words(&self) -> &[AtomicU64; Self::WORDS] {
        // SAFETY: repr(C), and every field is an AtomicU64 or an array of them.
        unsafe { &*(core::ptr::from_ref(self).cast()) }
    }

    /// Adds `other` to `self`; the maximum is kept as a maximum.
    pub fn fold(&self, other: &Counters) {
        for (to, from) in self.words().iter().zip(other.words()) {
            let (is_maximum, from) = (core::ptr::eq(to, &self.latency_max_ns), from.load(Ordering::Relaxed));
            if is_maximum {
                to.fetch_max(from, Ordering::Relaxed)
            } else {
                to.fetch_add(from, Ordering::Relaxed)
            };
        }
    }
}

/// Counts of I/Os on one swap area.
#[repr(C)]
#[derive(Default)]
#[allow(missing_docs)] // the names are those of INTERFACE.md's statistics
pub struct AreaCounters {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub errors: AtomicU64,
}

impl AreaCounters {
    /// All counters, in the order of declaration.
    pub fn words(&self) -> [&AtomicU64; 3] {
        [&self.reads, &self.writes, &self.errors]
    }

    /// Adds `other` to `self`.
    pub fn fold(&self, other: &AreaCounters) {
        for (to, from) in self.words().into_iter().zip(other.words()) {
            to.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// What a process has of one swap area now.
#[repr(C)]
#[derive(Default)]
pub struct AreaGauges {
    /// Bytes of its pages that are there.
    pub used: AtomicU64,
    /// An [`AreaState`] as a number.
    pub state: AtomicU64,
}

/// How many numbers there are for states.
pub const AREA_STATES: usize = AreaState::ALL.len();

/// The number of a state in [`AreaGauges::state`].
pub const fn area_state(state: AreaState) -> u64 {
    state as u64
}

/// States of [`Proc::state`].
pub mod proc_state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// Being filled in.
    pub const CLAIMED: u32 = 1;
    /// Agent present, nothing adopted: native speed.
    pub const WATCHING: u32 = 2;
    /// Memory adopted.
    pub const ACTIVE: u32 = 3;
}

/// One process of the tree.
#[repr(C, align(64))]
pub struct Proc {
    /// One of [`proc_state`].
    pub state: AtomicU32,
    /// Process id in the supervisor's pid namespace; 0 when free.
    pub pid: AtomicU32,
    /// Resident anonymous bytes that count against the limit (lowtide's own inside the process included).
    pub ram_bytes: AtomicU64,
    /// Of those, lowtide's own: pool, staged pages, tables, buffers, stacks, heap; 0 before memory is adopted.
    pub own_bytes: AtomicU64,
    /// Bytes of program pages waiting in staging (part of `own_bytes`).
    pub staged_bytes: AtomicU64,
    /// Bytes of frames that the pool holds.
    pub pool_bytes: AtomicU64,
    /// Bytes of compressed objects in the pool.
    pub pool_stored_bytes: AtomicU64,
    /// Pages stored now (pool and device, zero pages not).
    pub now_stored: AtomicU64,
    /// Pages in zero state now that were evicted as zero pages.
    pub now_zero: AtomicU64,
    /// Pages on the device now.
    pub now_on_device: AtomicU64,
    /// Bytes of address space adopted.
    pub adopted_bytes: AtomicU64,
    /// The swap areas, as in `Settings::swap`.
    pub areas_now: [AreaGauges; MAX_AREAS],
    /// Counts since the process was last started by exec.
    pub counters: Counters,
    /// I/Os on the swap areas since then.
    pub areas: [AreaCounters; MAX_AREAS],
    /// The words of its same-filled pages.
    pub same_filled_words: FillWords,
    /// Latencies of fault service: see [`latency_bucket`].
    pub latency: [AtomicU64; LATENCY_BUCKETS],
}

impl Proc {
    /// Sets all gauges (what is so now, unlike counts) to zero: for a new image of the process, or none.
    fn clear_gauges(&self) {
        for gauge in [
            &self.ram_bytes,
            &self.own_bytes,
            &self.staged_bytes,
            &self.pool_bytes,
            &self.pool_stored_bytes,
            &self.now_stored,
            &self.now_zero,
            &self.now_on_device,
            &self.adopted_bytes,
        ]
        .into_iter()
        .chain(self.areas_now.iter().flat_map(|area| [&area.used, &area.state]))
        {
            gauge.store(0, Ordering::Relaxed);
        }
    }
}

/// States of [`Text::state`].
pub mod text_state {
    /// Nothing there.
    pub const EMPTY: u32 = 0;
    /// Being written.
    pub const WRITING: u32 = 1;
    /// Complete.
    pub const READY: u32 = 2;
}

/// A line of text from an agent to `lowtide run`.
#[repr(C)]
pub struct Text {
    /// One of [`text_state`].
    pub state: AtomicU32,
    /// Sender.
    pub pid: AtomicU32,
    /// UTF-8 (anything else is replaced when shown), NUL-padded; eight bytes a word, so that no access is a data race.
    pub words: [AtomicU64; 40],
}

impl Text {
    /// Writes `text` (cut at 320 bytes) if the line is empty. False: it was taken.
    pub fn put(&self, pid: u32, text: &[u8]) -> bool {
        if self.state.compare_exchange(text_state::EMPTY, text_state::WRITING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        for (word, chunk) in self.words.iter().zip(text.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        self.pid.store(pid, Ordering::Relaxed);
        self.state.store(text_state::READY, Ordering::Release);
        true
    }

    /// The line, if complete: bytes with NUL padding.
    pub fn get(&self) -> Option<[u8; 320]> {
        if self.state.load(Ordering::Acquire) != text_state::READY {
            return None;
        }
        let mut out = [0; 320];
        for (word, chunk) in self.words.iter().zip(out.chunks_mut(8)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Some(out)
    }
}

/// The whole segment. An all-zero one (a fresh memfd) is valid and empty.
#[repr(C)]
pub struct Segment {
    /// [`MAGIC`], written last.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: u32,
    /// Pid of `lowtide run`.
    pub supervisor: u32,
    /// What was asked for.
    pub settings: Settings,
    /// Highest sum of `Proc::ram_bytes` seen by anyone.
    pub ram_peak: AtomicU64,
    /// Why the run must be stopped (device lost with pages on it, `--when-full stop`): `lowtide run` kills the tree when it is set.
    /// The writer wakes `fatal.state` (shared futex).
    pub fatal: Text,
    /// Warnings sent so far (those beyond [`MAX_WARNINGS`] are dropped).
    pub warnings_sent: AtomicU32,
    /// The first warnings.
    pub warnings: [Text; MAX_WARNINGS],
    /// Sums over processes that are gone.
    pub dead: Counters,
    /// Their I/Os on the swap areas.
    pub dead_areas: [AreaCounters; MAX_AREAS],
    /// Their words of same-filled pages.
    pub dead_words: FillWords,
    /// Their latencies.
    pub dead_latency: [AtomicU64; LATENCY_BUCKETS],
    /// The processes. Scan [`Segment::used_procs`], not this: reading a slot makes its page resident.
    pub procs: [Proc; MAX_PROCS],
    /// `lowtide run`'s own memory in bytes, this segment and the agent's file included: it counts against the limit.
    pub supervisor_bytes: AtomicU64,
    /// No slot from this index on has ever been claimed.
    pub procs_high: AtomicU32,
}

impl Segment {
    /// Bytes to map.
    pub const SIZE: usize = size_of::<Segment>().next_multiple_of(4096);

    /// Sends a warning line unless the same line has been sent before.
    pub fn warn(&self, pid: u32, text: &[u8]) {
        let mut padded = [0u8; 320];
        let n = text.len().min(320);
        padded[..n].copy_from_slice(&text[..n]);
        for line in &self.warnings {
            if line.get().is_some_and(|seen| seen == padded) {
                return;
            }
            if line.put(pid, text) {
                break;
            }
        }
        self.warnings_sent.fetch_add(1, Ordering::Relaxed);
    }

    /// The slots that have ever been claimed; all others are free.
    pub fn used_procs(&self) -> &[Proc] {
        &self.procs[..(self.procs_high.load(Ordering::Acquire) as usize).min(MAX_PROCS)]
    }

    /// Sum of what all live processes and `lowtide run` itself count against the limit, in bytes. Also keeps `ram_peak`.
    pub fn ram_now(&self) -> u64 {
        let mut sum = self.supervisor_bytes.load(Ordering::Relaxed);
        for p in self.used_procs() {
            if p.state.load(Ordering::Relaxed) >= proc_state::WATCHING {
                sum += p.ram_bytes.load(Ordering::Relaxed);
            }
        }
        self.ram_peak.fetch_max(sum, Ordering::Relaxed);
        sum
    }

    /// Claims a slot for process `pid`; one that this pid already holds (it called exec) is kept, and its counts are folded into the
    /// sums. None: all taken.
    pub fn claim(&self, pid: u32) -> Option<&Proc> {
        use proc_state::*;
        let held = |p: &&Proc| p.pid.load(Ordering::Relaxed) == pid && p.state.load(Ordering::Relaxed) != FREE;
        if let Some(p) = self.used_procs().iter().find(held) {
            self.fold(p);
            p.clear_gauges();
            p.state.store(WATCHING, Ordering::Release);
            return Some(p);
        }
        let (i, p) = self
            .procs
            .iter()
            .enumerate()
            .find(|(_, p)| p.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok())?;
        self.procs_high.fetch_max(i as u32 + 1, Ordering::AcqRel);
        p.pid.store(pid, Ordering::Relaxed);
        p.state.store(WATCHING, Ordering::Release);
        Some(p)
    }

    /// Folds the counts of a process that is gone into the sums and frees its slot. Only `lowtide run` calls this.
    pub fn bury(&self, p: &Proc) {
        self.fold(p);
        p.clear_gauges();
        p.pid.store(0, Ordering::Relaxed);
        p.state.store(proc_state::FREE, Ordering::Release);
    }

    /// Folds the counts of a process into the sums of the dead, and sets them to zero.
    fn fold(&self, p: &Proc) {
        self.dead.fold(&p.counters);
        self.dead_areas.iter().zip(&p.areas).for_each(|(to, from)| to.fold(from));
        self.dead_words.fold(&p.same_filled_words);
        for (to, from) in self.dead_latency.iter().zip(&p.latency) {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        for word in p.counters.words().iter().chain(p.areas.iter().flat_map(AreaCounters::words)) {
            word.store(0, Ordering::Relaxed);
        }
        p.same_filled_words.set(&[FillWord::default(); FILL_WORDS]);
    }
}

/// The histogram bucket of a latency: eight buckets an octave (12 % wide) from 256 ns; the last one holds the rest.
pub fn latency_bucket(ns: u64) -> usize {
    let ns = ns.max(256);
    let octave = 63 - ns.leading_zeros() as usize;
    ((octave - 8) * 8 + ((ns >> (octave - 3)) & 7) as usize).min(LATENCY_BUCKETS - 1)
}

/// Lower bound in nanoseconds of histogram bucket `i`: the inverse of [`latency_bucket`].
pub fn latency_floor_ns(i: usize) -> u64 {
    let (octave, step) = (i / 8 + 8, (i % 8) as u64);
    (8 + step) << (octave - 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_and_floors_agree() {
        for i in 0..LATENCY_BUCKETS {
            assert_eq!(latency_bucket(latency_floor_ns(i)), i);
            assert_eq!(latency_bucket(latency_floor_ns(i + 1) - 1), i);
        }
        assert_eq!(latency_bucket(0), 0);
        assert_eq!(latency_bucket(u64::MAX), LATENCY_BUCKETS - 1);
    }

    fn segment() -> std::boxed::Box<Segment> {
        let layout = std::alloc::Layout::new::<Segment>();
        // SAFETY: zeros are a valid Segment, and the memory is the global allocator's, of this layout.
        unsafe { std::boxed::Box::from_raw(std::alloc::alloc_zeroed(layout).cast()) }
    }

    #[test]
    fn what_a_process_did_is_counted_once_whether_it_executes_another_program_or_dies() {
        let run = segment();
        let (first, second) = (run.claim(10).unwrap(), run.claim(11).unwrap());
        let work = |p: &Proc, n: u64| {
            p.counters.writeback_ios.fetch_add(n, Ordering::Relaxed);
            p.counters.latency_max_ns.store(100 * n, Ordering::Relaxed);
            p.areas[2].writes.fetch_add(n, Ordering::Relaxed);
            p.areas[7].errors.fetch_add(1, Ordering::Relaxed);
            p.areas_now[2].used.store(n, Ordering::Relaxed);
            p.areas_now[2].state.store(area_state(AreaState::Failing), Ordering::Relaxed);
        };
        work(first, 5);
        assert!(core::ptr::eq(run.claim(10).unwrap(), first), "it called exec");
        let now = |p: &Proc| {
            p.areas_now.iter().map(|a| a.used.load(Ordering::Relaxed) + a.state.load(Ordering::Relaxed)).sum::<u64>()
        };
        assert_eq!((first.counters.writeback_ios.load(Ordering::Relaxed), now(first)), (0, 0));
        work(first, 3);
        work(second, 2);
        run.bury(first);
        run.bury(second);
        assert_eq!((now(first), now(second)), (0, 0));
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((of(&run.dead.writeback_ios), of(&run.dead.latency_max_ns)), (10, 500));
        assert_eq!((of(&run.dead_areas[2].writes), of(&run.dead_areas[7].errors), of(&run.dead_areas[0].writes)), (10, 3, 0));
    }

    #[test]
    fn text_is_written_once() {
        let text = Text { state: AtomicU32::new(0), pid: AtomicU32::new(0), words: [const { AtomicU64::new(0) }; 40] };
        assert!(text.get().is_none());
        assert!(text.put(7, b"the disk is gone"));
        assert!(!text.put(8, b"too late"));
        assert!(text.get().unwrap().starts_with(b"the disk is gone\0"));
    }
}
