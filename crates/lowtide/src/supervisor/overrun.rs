//! A run that has passed its limit by more than is promised says so at its end, always: with what was seen just then, as far as
//! no other warning has told why.

use lowtide_config::proc;
use lowtide_config::size;
use lowtide_pager::segment::{Proc, Segment, proc_state};
use std::sync::atomic::Ordering;

/// What programs may pass the limit by, at most (docs/lab.md, "How far the limit can be passed"): a part of it, in percent, and
/// bytes.
const PERCENT: u64 = 15;
const BYTES: u64 = 32 << 20;
/// Warnings that have this in them have said it.
const SAID: &str = "goes over its limit";

/// The highest sum that keeps a limit.
fn bound(limit: u64) -> u64 {
    limit.saturating_add(limit / 100 * PERCENT).saturating_add(BYTES)
}

/// What was seen of a run.
#[derive(Default)]
pub struct Overrun {
    /// The highest limit so far.
    limit: u64,
    /// At the look that found most beyond what was promised then: what the run used, the limit, and why.
    worst: Option<(u64, u64, String)>,
}

impl Overrun {
    /// A look at a run that uses `ram` bytes, and may use `limit`.
    pub fn look(&mut self, segment: &Segment, limit: u64, ram: u64) {
        self.limit = self.limit.max(limit);
        let over = |ram: u64, limit| ram.saturating_sub(bound(limit));
        if over(ram, limit) > self.worst.as_ref().map_or(0, |(ram, limit, _)| over(*ram, *limit)) {
            self.worst = Some((ram, limit, why(segment)));
        }
    }

    /// What is to be said at the end of a run that has shown these warnings.
    pub fn warning(&self, segment: &Segment, said: &[String]) -> Option<String> {
        if said.iter().any(|text| text.contains(SAID)) {
            return None;
        }
        let peak = segment.ram_peak.load(Ordering::Relaxed);
        let (ram, limit, why) = match &self.worst {
            Some((ram, limit, why)) => (if *limit == self.limit { peak.max(*ram) } else { *ram }, *limit, why.as_str()),
            None if self.limit > 0 && peak > bound(self.limit) => (peak, self.limit, "for less time than between two looks"),
            None => return None,
        };
        Some(format!("the run used {}, more than its limit of {} allows for: {why}", size::show(ram), size::show(limit)))
    }
}

/// Why the run may be over its limit now.
fn why(segment: &Segment) -> String {
    let ram = |p: &&Proc| p.ram_bytes.load(Ordering::Relaxed);
    let alive = segment.used_procs().iter().filter(|p| p.state.load(Ordering::Acquire) >= proc_state::WATCHING);
    let Some(largest) = alive.max_by_key(ram) else { return "its processes have ended".to_owned() };
    let pid = largest.pid.load(Ordering::Relaxed);
    let name = proc::Stat::of(pid).map_or_else(String::new, |stat| format!(" ({})", stat.name));
    let what = if largest.state.load(Ordering::Relaxed) < proc_state::ACTIVE {
        "grew before its memory was registered"
    } else if largest.family.load(Ordering::Relaxed) != 0 && segment.seen_active.load(Ordering::Relaxed) > 1 {
        "and those that it shares memory with wrote to what they share"
    } else {
        "grew faster than lowtide could evict"
    };
    format!("process {pid}{name} {what}; free CPUs or a higher --ram help")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::shared_memory::tests::segment;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_within_the_bound_is_not_said_and_what_is_beyond_it_is_said_once() {
        let segment = segment();
        let mut overrun = Overrun::default();
        overrun.look(&segment, 31 * MIB, 67 * MIB);
        assert_eq!(overrun.warning(&segment, &[]), None);
        segment.claim(std::process::id()).unwrap().ram_bytes.store(70 * MIB, Ordering::Relaxed);
        overrun.look(&segment, 31 * MIB, 70 * MIB);
        overrun.look(&segment, 31 * MIB, 30 * MIB);
        let text = overrun.warning(&segment, &[]).unwrap();
        let has = ["70 MiB", "31 MiB", "before its memory was registered"].map(|part| text.contains(part));
        assert_eq!(has, [true; 3], "{text}");
        assert_eq!(overrun.warning(&segment, &["9 MiB are pinned: the run goes over its limit".to_owned()]), None);
    }

    #[test]
    fn a_peak_between_two_looks_is_said_too() {
        let segment = segment();
        let mut overrun = Overrun::default();
        overrun.look(&segment, 31 * MIB, 20 * MIB);
        segment.ram_peak.store(93 * MIB, Ordering::Relaxed);
        assert!(overrun.warning(&segment, &[]).is_some_and(|text| text.contains("93 MiB")));
        // It was within the limit that was set then, for all that is known.
        overrun.look(&segment, 200 * MIB, 20 * MIB);
        assert_eq!(overrun.warning(&segment, &[]), None);
    }
}
