//! What lowtide says that it takes itself is what the kernel says, while programs run.

use std::fs;
use std::time::{Duration, Instant};

use crate::check::{Data, limits};
use crate::gauges::{Gauges, own};
use crate::machine::{native_only, say, turn};
use crate::measure::Running;
use crate::programs::job;

const MIB: u64 = 1 << 20;

/// How far apart the two may be.
fn tolerance(bytes: u64) -> u64 {
    bytes / 50 + MIB
}

/// Private resident bytes of lowtide's mappings in a process, from /proc/PID/smaps: those that are left out of core dumps (`dd`;
/// the test programs have none of their own) and not shared, and the data of the agent's library. None: the process is gone.
fn resident(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).ok().filter(|text| !text.is_empty())?;
    let (mut sum, mut anonymous, mut private, mut library) = (0, 0, false, false);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next()? {
            "Anonymous:" => anonymous = words.next()?.parse::<u64>().ok()? * 1024,
            "VmFlags:" if private && (library || words.any(|flag| flag == "dd")) => sum += anonymous,
            "VmFlags:" => {}
            range if !range.ends_with(':') => {
                private = words.next()?.ends_with('p');
                library = line.contains("/memfd:lowtide-agent");
            }
            _ => {}
        }
    }
    Some(sum)
}

/// What was seen of a run.
#[derive(Default)]
struct Seen {
    samples: usize,
    /// Most bytes of lowtide's own.
    most: u64,
    /// Furthest outside what the figure was before and after.
    worst: u64,
    wrong: Vec<String>,
}

impl Seen {
    /// Compares all processes of the run. The figure goes on changing while the mappings are read, so it is read before and after.
    fn sample(&mut self, gauges: &Gauges) {
        for (pid, process) in gauges.active() {
            let before = own(process);
            let Some(kernel) = resident(pid) else { continue };
            let after = own(process);
            // The process ended, or executed another program, meanwhile.
            if after == 0 || !gauges.active().any(|(p, _)| p == pid) {
                continue;
            }
            let (low, high) = (before.min(after), before.max(after));
            let off = low.saturating_sub(kernel).max(kernel.saturating_sub(high));
            self.samples += 1;
            self.most = self.most.max(kernel);
            self.worst = self.worst.max(off);
            if off > tolerance(kernel) {
                self.wrong.push(format!("process {pid}: the kernel says {kernel}, lowtide {before}, then {after}"));
            }
        }
    }

    /// Watches until the run ends.
    fn watch(&mut self, run: &mut Running) {
        let mut gauges = None;
        run.wait_until(|run| {
            gauges = gauges.take().or_else(|| Gauges::of(run.session));
            gauges.iter().for_each(|gauges| self.sample(gauges));
            false
        });
    }
}

/// Runs a program at each limit and compares all the while. False: it can't be run here.
fn compare(program: &str, arguments: &str) -> bool {
    let Some(job) = job(&format!("accounting {program}"), program, arguments) else { return false };
    let native = job.native();
    if native_only() {
        return true;
    }
    for limit in limits(native.peak, Data::Compressible) {
        let mut seen = Seen::default();
        let mut run = job.start_limited(&limit);
        seen.watch(&mut run);
        let ended = run.finish();
        say(&format!(
            "  {:<28} --ram {} MiB: {} samples, own at most {:.1} MiB, furthest apart {:.2} MiB",
            job.name,
            limit.ram / MIB,
            seen.samples,
            seen.most as f64 / MIB as f64,
            seen.worst as f64 / MIB as f64,
        ));
        let (wrong, samples) = (&seen.wrong, seen.samples);
        assert!(wrong.is_empty(), "{program} {arguments}, {limit:?}: {} of {samples}: {wrong:#?}", wrong.len());
        // That the answer is the right one is what the other tests check.
        assert!(samples > 0 && seen.most > 0, "{program}, {limit:?}: {samples} samples, {ended:?}");
    }
    true
}

#[test]
#[ignore = "not met at every moment yet: between two measurements, 100 ms, more can change than 2 % + 1 MiB"]
fn own_memory_is_what_the_kernel_says() {
    let Some(_turn) = turn() else { return };
    let _ = compare("thread_mix", "4 6000 48") && compare("one_malloc", "160 ztw");
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_own_memory_is_what_the_kernel_says() {
    let Some(_turn) = turn() else { return };
    let seconds = std::env::var("SOAK_SECONDS").map_or(300, |text| text.parse().expect("SOAK_SECONDS is a number"));
    let until = Instant::now() + Duration::from_secs(seconds);
    for round in 1u64.. {
        let mix = format!("4 12000 48 {round}");
        for (program, arguments) in [
            ("thread_mix", mix.as_str()),
            ("one_malloc", "192 ztnwtn 10000"),
            ("new_mappings", "mmap 384"),
            ("forks", "stay 128 6"),
        ] {
            if Instant::now() > until || !compare(program, arguments) {
                return;
            }
        }
    }
}
