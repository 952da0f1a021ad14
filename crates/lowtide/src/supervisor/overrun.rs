//! Reports at the end that a run passed its limit by more than promised, with the cause seen at
//! that moment unless another warning has named it.

use lowtide_config::proc;
use lowtide_config::size;
use lowtide_wire::segment::{Proc, Segment, proc_state};
use std::sync::atomic::Ordering;

/// Promised bound of passing the limit (bench/README.md, "How far the limit can be passed"), in
/// percent of it plus bytes.
const PERCENT: u64 = 15;
const BYTES: u64 = 32 << 20;
/// Warnings that contain this have reported it.
const SAID: &str = "goes over its limit";

fn bound(limit: u64) -> u64 {
    limit.saturating_add(limit / 100 * PERCENT).saturating_add(BYTES)
}

#[derive(Default)]
pub struct Overrun {
    limit: u64,
    /// At the look with the largest excess: bytes used, the limit, and the cause.
    worst: Option<(u64, u64, String)>,
}

impl Overrun {
    /// Checks a run that uses `ram` bytes under `limit`.
    pub fn look(&mut self, segment: &Segment, limit: u64, ram: u64) {
        self.limit = self.limit.max(limit);
        let over = |ram: u64, limit| ram.saturating_sub(bound(limit));
        if over(ram, limit) > self.worst.as_ref().map_or(0, |(ram, limit, _)| over(*ram, *limit)) {
            self.worst = Some((ram, limit, why(segment)));
        }
    }

    /// The final warning, given the warnings that the run has shown.
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
        // Within the limit of that time.
        overrun.look(&segment, 200 * MIB, 20 * MIB);
        assert_eq!(overrun.warning(&segment, &[]), None);
    }
}
