//! Defines each statistic once: its JSON key, its help text, its shape, and its segment counter if
//! it has one. The JSON object ([`super::Stats`]) and the metrics ([`crate::metrics`]) derive from
//! it.

use super::{Latency, SameFilledWord};
use lowtide_wire::segment::Counters;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Monotonic.
    Count,
    /// Monotonic; the kinds of a group add up to its [`Shape::Sum`].
    Kind,
    /// The sum of the group's kinds.
    Sum,
    /// A gauge in bytes.
    Bytes,
    Gauge,
    /// Not a number.
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Whole(u64),
    Real(f64),
}

#[derive(Debug, Clone, Copy)]
pub struct Figure {
    pub key: &'static str,
    pub help: &'static str,
    pub shape: Shape,
    pub value: Number,
}

trait Value {
    fn number(&self) -> Option<Number>;
}

impl Value for u64 {
    fn number(&self) -> Option<Number> {
        Some(Number::Whole(*self))
    }
}

impl Value for f64 {
    fn number(&self) -> Option<Number> {
        Some(Number::Real(*self))
    }
}

macro_rules! no_figures {
    ($($type:ty),+) => { $(impl Value for $type {
        fn number(&self) -> Option<Number> {
            None
        }
    })+ };
}
no_figures!(i32, String, &'static str, Vec<SameFilledWord>, Latency, Option<Remote>);

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Fields: `/// help`, then `key: type, Shape = counter / units a second;` where the last two parts
/// are optional.
macro_rules! figures {
    ($(#[doc = $about:literal])+ $Group:ident, $name:literal {
        $($(#[doc = $help:literal])+ $key:ident: $type:ty, $shape:ident $(= $counter:ident $(/ $per:literal)?)?;)+
    }) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Default, Serialize)]
        pub struct $Group {
            $($(#[doc = $help])+ pub $key: $type,)+
        }

        #[allow(dead_code)] // not every group is made of counters
        impl $Group {
            /// The group's name among the metrics.
            pub const NAME: &'static str = $name;
            pub const ABOUT: &'static str = concat!($($about),+);

            /// Fills the statistics that are counters; leaves the others zero or empty.
            pub fn counted(counters: &Counters) -> $Group {
                let _ = counters;
                $Group { $($key: figures!(@from counters $type $(, $counter $(/ $per)?)?),)+ }
            }

            pub fn figures(&self) -> Vec<Figure> {
                let all = [$((stringify!($key), concat!($($help),+), Shape::$shape, self.$key.number()),)+];
                let figure = |(key, help, shape, value)| Some(Figure { key, help: str::trim(help), shape, value: value? });
                all.into_iter().filter(|(.., shape, _)| *shape != Shape::Text).filter_map(figure).collect()
            }
        }
    };
    (@from $counters:ident $type:ty) => { <$type>::default() };
    (@from $counters:ident $type:ty, $counter:ident) => { read(&$counters.$counter) };
    (@from $counters:ident $type:ty, $counter:ident / $per:literal) => {
        super::rounded(read(&$counters.$counter) as f64 / $per)
    };
}

figures! {
    /// Memory of the run: what its limits are, and what it has.
    Memory, "" {
        /// The limit: what the run may have of RAM.
        ram_limit: u64, Bytes;
        /// What the run has of RAM: its processes' anonymous memory and lowtide's own.
        ram_now: u64, Bytes;
        /// The most that it has had.
        ram_peak: u64, Bytes;
        /// Pages of the program that are in memory.
        resident_bytes: u64, Bytes;
        /// What lowtide holds: pool, staging, tables, and lowtide run itself.
        own_bytes: u64, Bytes;
        /// Pages that wait in staging, detached and not stored yet.
        staged_bytes: u64, Bytes;
        /// Memory of the compressed pool.
        pool_bytes: u64, Bytes;
        /// Compressed bytes in the pool.
        pool_stored_bytes: u64, Bytes;
        /// The most that the pool may have.
        pool_limit: u64, Bytes;
    }
}

figures! {
    /// Pages by what became of them when they left, over the whole run.
    Pages, "pages" {
        /// Pages that were stored, in the pool or on a device.
        stored: u64, Count = stored_pages;
        /// Pages that were all zero, which take no room.
        zero: u64, Count = zero_pages;
        /// Pages that repeat one word other than zero: stored, compressed to some thirty bytes.
        same_filled: u64, Count = same_filled_pages;
        /// The words that most same-filled pages repeat.
        same_filled_words: Vec<SameFilledWord>, Text;
        /// Pages that did not become smaller by compression.
        incompressible: u64, Count = incompressible_pages;
        /// Pages that were compressed, and stored on a device, or as they were, all the same.
        compressed_in_vain: u64, Count = in_vain_pages;
        /// Pages that were compressed after a shuffle: the bytes of their words sorted by place.
        shuffled: u64, Count = shuffled_pages;
        /// Cold pages that were compressed again with zstd.
        recompressed: u64, Count = recompressed_pages;
        /// Bytes by which recompressed pages became smaller.
        recompressed_bytes: u64, Count = recompressed_bytes;
        /// Pages that are on devices now.
        on_device: u64, Gauge;
        /// Pages that came back, read-ahead included.
        loaded: u64, Count = pages_in;
    }
}

figures! {
    /// Page faults that lowtide served, by where the page was.
    Faults, "faults" {
        /// All faults.
        total: u64, Sum = faults_total;
        /// Served by the thread itself (`--faults`).
        in_thread: u64, Count = faults_in_thread;
        /// On pages that were all zero when they left.
        zero: u64, Kind = faults_zero;
        /// On pages that waited in staging.
        staged: u64, Kind = faults_staged;
        /// On pages in the compressed pool.
        pool: u64, Kind = faults_pool;
        /// On pages that were on a device.
        device: u64, Kind = faults_device;
        /// On pages that nobody had touched before.
        first_touch: u64, Kind = faults_first_touch;
        /// Pages brought in before they were asked for.
        read_ahead_pages: u64, Count = read_ahead_pages;
        /// Pages brought in ahead, behind which the program went on in the same direction.
        read_ahead_used: u64, Count = read_ahead_used;
    }
}

figures! {
    /// What was left to fault handler threads although threads serve their own faults (`--faults`), by why; the last two
    /// say of how much of it no record was written.
    RingRecords, "ring_records" {
        /// The page was there and write-protected, or watched otherwise.
        protected: u64, Kind;
        /// The kernel missed it: in a system call, or for another process.
        kernel_mode: u64, Kind;
        /// A thread of another process did, in this address space: a child of vfork.
        another_process: u64, Kind;
        /// A tracer would have seen the signal.
        traced: u64, Kind;
        /// The thread blocked the signal.
        signal_blocked: u64, Kind;
        /// The program had a handler of its own for the signal, or ignored it.
        another_handler: u64, Kind;
        /// No room for the signal's frame was in memory.
        no_stack: u64, Kind;
        /// The stack may be one that the program made, with no more room than it needs (`--faults auto` only).
        unknown_stack: u64, Kind;
        /// Seccomp could have forbidden what the handler does.
        seccomp: u64, Kind;
        /// The thread's system calls become signals, also those of the handler.
        user_dispatch: u64, Kind;
        /// The thread has used io_uring.
        io_uring: u64, Kind;
        /// The handler could not serve it: a device, no room, a fork, an event that waited.
        declined: u64, Kind;
        /// The kernel did not send the signal.
        not_sent: u64, Kind;
        /// No fault, but an event of userfaultfd's: memory was unmapped, removed, moved or forked.
        event: u64, Kind;
        /// No record: the ring was full, and the userfaultfd was read.
        ring_full: u64, Kind;
        /// No record: the thread's last one, which nobody had read yet, said the same.
        asked_already: u64, Kind;
    }
}

figures! {
    /// Evictions: pages that were taken out of the program's memory.
    Evictions, "evictions" {
        /// Pages that were detached from the program.
        pages: u64, Count = evictions_pages;
        /// Pages that had a copy on a device which was still good, and were not written again.
        clean: u64, Count = evictions_clean;
        /// Batches evicted while a fault waited.
        direct: u64, Count = evictions_direct;
        /// Pages that were evicted in the background.
        background: u64, Count = evictions_background;
        /// System calls that moved pages out, failed ones included.
        moved_calls: u64, Count = moved_calls;
    }
}

figures! {
    /// What lowtide's own threads do, and wait for.
    Work, "work" {
        /// CPU that lowtide's threads in the processes have had.
        cpu_seconds: f64, Count = cpu_us / 1e6;
        /// Calls that change memory (mremap and others) and were refused to programs without hooks.
        calls_refused: u64, Count = calls_refused;
        /// Times that a fault handler slept until something came.
        monitor_wakeups: u64, Count = monitor_wakeups;
        /// Times that a fault handler woke and found nothing, or gave up.
        monitor_wakeups_vain: u64, Count = monitor_wakeups_vain;
        /// Time in which a thread of the program waited while a fault handler detached pages that are not its own.
        staging_ahead_seconds: f64, Count = staging_ahead_ns / 1e9;
        /// Times that a thread slept for the lock that serving, evicting and following events share.
        space_lock_sleeps: u64, Count = space_lock_sleeps;
        /// Time that threads waited for that lock.
        space_lock_seconds: f64, Count = space_lock_wait_ns / 1e9;
        /// Times that a thread found another of lowtide's locks held.
        lock_waits: u64, Count;
        /// Time that threads waited for these.
        lock_wait_seconds: f64, Count;
    }
}

figures! {
    /// Where the compressed pool did not take what was offered.
    Pool, "pool" {
        /// Times that it became full: it takes nothing then until enough has left it.
        full_times: u64, Count = pool_full_times;
        /// Pages that it had no room for, or that were not offered to it while it was full: they went to a device, or stayed
        /// in memory.
        refused: u64, Count = pool_refused_pages;
        /// Sizes of it that were tried, smaller ones and its whole share again.
        trials: u64, Count = pool_trials;
        /// Those with which the program got clearly more done.
        trials_paid: u64, Count = pool_trials_paid;
    }
}

figures! {
    /// What was written to devices.
    Writeback, "writeback" {
        /// Pages that were written.
        pages: u64, Count = writeback_pages;
        /// Writes.
        ios: u64, Count = writeback_ios;
        /// Bytes that were written.
        bytes: u64, Count = writeback_bytes;
    }
}

figures! {
    /// A swap area, with what all processes did there.
    Area, "area" {
        /// How it was asked for.
        spec: String, Text;
        /// Areas with a higher one are used first.
        prio: i32, Text;
        /// The most that it may hold.
        size: u64, Bytes;
        /// Pages that are there, without those that a process has from its parent.
        used: u64, Bytes;
        /// `active`, `full`, or `failing` if the latest write of a process failed; `emptying` while it is being taken
        /// off, then `off`.
        state: &'static str, Text;
        /// Reads.
        reads: u64, Count;
        /// Writes.
        writes: u64, Count;
        /// Bytes that were read.
        read_bytes: u64, Count;
        /// Bytes that were written.
        write_bytes: u64, Count;
        /// Reads and writes that failed.
        errors: u64, Count;
        /// What passed between lowtide run and its servers, if it is on servers.
        remote: Option<Remote>, Text;
    }
}

figures! {
    /// What passed between lowtide run and the servers of a swap area.
    Remote, "remote" {
        /// Pages that servers have acknowledged.
        pages_written: u64, Count;
        /// Pages that came back.
        pages_read: u64, Count;
        /// Bytes that were sent: commands with pages in them.
        sent_bytes: u64, Count;
        /// Bytes that were received.
        received_bytes: u64, Count;
        /// Connections that broke, or were given up; another was made in the place of each when it was needed.
        reconnects: u64, Count;
        /// Replicas that were seen to have taken the places of their primaries.
        failovers: u64, Count;
        /// Pages that were read from their second copies.
        second_copies_read: u64, Count;
        /// Copies that their nodes had lost, where the other copy was there, counted at each read.
        copies_lost: u64, Count;
        /// Copies that were not what was written, where the other copy was, counted at each read.
        copies_wrong: u64, Count;
        /// Pages that were written where both of their copies are on one node.
        copies_together: u64, Count;
        /// How long requests for pages took, from when lowtide run had them to its answer.
        read_latency_us: Latency, Text;
    }
}
