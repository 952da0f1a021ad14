//! What must hold for every program: the same answer as natively, under the limit, with something really evicted, and nothing
//! left behind.

use crate::machine::{native_only, say};
use crate::measure::{Job, Limit, Outcome, Swap};

const MIB: u64 = 1 << 20;

/// How a program comes by its memory: it decides by how much the limit may be passed.
#[derive(Debug, Clone, Copy)]
pub enum Growth {
    /// Mappings that exist grow or are touched.
    Existing,
    /// New mappings in a stream, as fast as possible.
    Stream,
    /// Two processes overwrite what they share as fast as they can: the kernel copies it at the speed of memory, and holds
    /// nobody back.
    Copies,
    /// Processes that share their memory by forks, and come to have their own; the samples are those of [`Job::with_forks`].
    Forks,
}

impl Growth {
    /// The highest sample that keeps the limit.
    pub fn bound(self, ram: u64) -> u64 {
        match self {
            Self::Existing => ram + ram / 20 + 16 * MIB,
            Self::Forks => ram + ram / 10 + 32 * MIB,
            Self::Stream => ram + ram * 15 / 100 + 32 * MIB,
            Self::Copies => ram + ram * 30 / 100 + 32 * MIB,
        }
    }
}

/// Whether the program's data compress at least 2.5 : 1, so that compressed RAM alone holds them at 70 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    Compressible,
    Any,
}

/// The limits that the program is tried at.
pub fn limits(native_peak: u64, data: Data) -> Vec<Limit> {
    let part = |percent: u64| (native_peak * percent / 100).max(lowtide_config::ram::LEAST);
    let mut limits = vec![Limit { ram: part(40), swap: Swap::Default }];
    if data == Data::Compressible {
        limits.insert(0, Limit { ram: part(70), swap: Swap::Ram });
    }
    limits
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}

/// Says how a limited run went, in one line.
pub fn report(job: &Job, limit: &Limit, native: &Outcome, limited: &Outcome) {
    say(&format!(
        "  {:<28} --ram {} {:<7}  native {} {:.2} s; limited {} {:.2} s; {} pages out, ratio {:.1}",
        job.name,
        mib(limit.ram),
        match limit.swap {
            Swap::Ram => "ram",
            Swap::Default => "default",
            Swap::Options(_) => "as said",
        },
        mib(native.peak),
        native.elapsed.as_secs_f64(),
        mib(limited.peak),
        limited.elapsed.as_secs_f64(),
        limited.stat("evictions.pages"),
        limited.stat("compression_ratio"),
    ));
}

/// What is wrong with a limited run, if anything.
pub fn faults(native: &Outcome, limited: &Outcome, limit: &Limit, growth: Growth) -> Vec<String> {
    let mut faults = Vec::new();
    if limited.status != native.status {
        faults.push(format!("exit status {}, natively {}", limited.status, native.status));
    }
    if limited.stdout != native.stdout {
        faults.push(format!("prints {:?}, natively {:?}", limited.stdout, native.stdout));
    }
    if limited.stat("evictions.pages") == 0.0 {
        faults.push(format!("nothing was evicted: {}", limited.stats));
    }
    if limited.peak > growth.bound(limit.ram) {
        faults.push(format!("peak {}, allowed {}", mib(limited.peak), mib(growth.bound(limit.ram))));
    }
    if !limited.left.is_empty() {
        faults.push(format!("left behind: {:?}", limited.left));
    }
    faults
}

/// Runs the program natively, then at each limit, and panics with all that is wrong. The native run must satisfy `sound`, so
/// that two equal failures don't pass.
pub fn compare(job: &Job, growth: Growth, data: Data, sound: impl Fn(&Outcome) -> bool) {
    let native = job.native();
    assert!(sound(&native), "{}: the native run is unsound: {native:?}", job.name);
    assert!(native.left.is_empty(), "{}: the native run leaves {:?}", job.name, native.left);
    if native_only() {
        say(&format!("  {:<28} native {} {:.2} s", job.name, mib(native.peak), native.elapsed.as_secs_f64()));
        return;
    }
    let mut all = String::new();
    for limit in limits(native.peak, data) {
        let limited = job.limited(&limit);
        report(job, &limit, &native, &limited);
        for fault in faults(&native, &limited, &limit, growth) {
            all += &format!("\n{} at --ram {} ({:?}): {fault}", job.name, mib(limit.ram), limit.swap);
        }
        if !all.is_empty() {
            all += &format!("\nstandard error: {}", limited.stderr);
        }
    }
    assert!(all.is_empty(), "{all}");
}

/// The usual end of a test program: status 0 and a line that begins with OK.
pub fn ends_well(outcome: &Outcome) -> bool {
    outcome.status == 0 && outcome.stdout.lines().any(|line| line.starts_with("OK"))
}
