//! The page of `--report`: what happened (`over_time.rs`), where pages were and what they held
//! (`pages.rs`), what more RAM would have brought (`working_set.rs`, `more_ram.rs`), and advice
//! (`advice.rs`). `page.rs` composes it, `chart.rs` draws.

mod advice;
mod chart;
mod more_ram;
mod over_time;
mod page;
mod pages;
mod units;
mod working_set;

use crate::plan::Plan;
use crate::stats::{Stats, latencies, totals};
use crate::supervisor::series::Series;
use lowtide_wire::segment::{FaultKind, LATENCY_BUCKETS, Segment};
use std::ffi::OsString;
use std::sync::atomic::Ordering;
use std::time::Duration;
use working_set::Observed;

pub struct Report<'a> {
    stats: &'a Stats,
    series: &'a Series,
    latencies: [u64; LATENCY_BUCKETS],
    observed: Observed,
    /// As it was typed.
    command: Vec<OsString>,
    options: Vec<(&'static str, String)>,
    code: u8,
}

impl<'a> Report<'a> {
    /// For a run that has ended, with all processes reaped. `code`: the exit status.
    pub fn new(plan: &Plan, stats: &'a Stats, segment: &Segment, series: &'a Series, code: u8) -> Report<'a> {
        let counters = totals(segment);
        let service_ns: [u64; FaultKind::ALL.len()] =
            std::array::from_fn(|kind| counters.service_ns[kind].load(Ordering::Relaxed));
        Report {
            stats,
            series,
            latencies: latencies(segment),
            observed: Observed::new(stats, series.samples(), service_ns, children_cpu()),
            command: std::env::args_os().collect(),
            options: options(plan, stats),
            code,
        }
    }

    pub fn page(&self) -> String {
        page::page(self).into_string()
    }
}

fn options(plan: &Plan, stats: &Stats) -> Vec<(&'static str, String)> {
    let swap: Vec<_> = stats.areas.iter().map(|area| format!("{} (up to {})", area.spec, units::bytes(area.size))).collect();
    let when_full = if plan.when_full == lowtide_wire::segment::WHEN_FULL_STOP { "stop" } else { "exceed" };
    vec![
        ("--ram", units::bytes(plan.ram)),
        ("--swap", if swap.is_empty() { "compressed RAM only".to_owned() } else { swap.join(", ") }),
        ("--pool", units::bytes(plan.pool)),
        ("--codec", lowtide_config::codec::show(plan.codec)),
        ("--when-full", when_full.to_owned()),
    ]
}

fn children_cpu() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills a valid rusage; zeros are one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |time: libc::timeval| Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64);
    time(usage.ru_utime) + time(usage.ru_stime)
}
