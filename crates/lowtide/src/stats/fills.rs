//! `stat --areas`: the fill of the swap areas' clusters, which the processes count on request.

use crate::error::Failure;
use crate::live::{Answer, Live, Step, Task, answer, failure, processes};
use crate::stats::Stats;
use lowtide_core::slot::Fills;
use lowtide_core::store::MAX_AREAS;
use lowtide_wire::segment::{Proc, Segment};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time for the processes to count.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

struct Asked {
    number: u64,
    at: Instant,
}

pub fn start(run: &Live<'_>) -> Box<dyn Task> {
    // AcqRel: pairs with the Acquire of the reclaimers.
    let number = run.shared.settings().fills_asked.fetch_add(1, Ordering::AcqRel) + 1;
    Box::new(Asked { number, at: Instant::now() })
}

impl Task for Asked {
    fn step(&mut self, run: &mut Live<'_>) -> Step {
        let silent = self.silent(run.shared.segment());
        if !silent.is_empty() && self.at.elapsed() < ANSWERS_WITHIN {
            return Step::Going(None);
        }
        run.look();
        Step::Done(self.answer(run, &silent))
    }

    fn cancel(&mut self, _: &mut Live<'_>) -> Answer {
        Err(failure("stat: cancelled"))
    }
}

impl Asked {
    fn has_told(&self, p: &Proc) -> bool {
        // Acquire: pairs with the Release in the agent's `tell_fills`. Later questions are answered
        // later.
        p.fills_told.load(Ordering::Acquire) >= self.number
    }

    /// Processes that have or may have areas, and have not answered.
    fn silent(&self, segment: &Segment) -> Vec<u32> {
        let waited_for = |p: &&Proc| processes::is_active(p) && !self.has_told(p);
        processes::alive(segment).filter(waited_for).map(processes::pid).collect()
    }

    fn answer(&self, run: &Live<'_>, silent: &[u32]) -> Answer {
        let mut sums = [Fills::default(); MAX_AREAS];
        for p in processes::alive(run.shared.segment()).filter(|p| self.has_told(p)) {
            sums.iter_mut().zip(&p.fills).for_each(|(sum, fills)| sum.add(fills.get()));
        }
        let stats = Stats::new(run, run.tree.now(), run.started.elapsed());
        let mut stats = serde_json::to_value(stats).map_err(|error| Failure::failed(format!("no statistics: {error}")))?;
        for (i, area) in run.areas.list().iter().enumerate() {
            let fills = area.place.and_then(|place| sums.get(place)).copied().unwrap_or_default();
            stats["areas"][i]["clusters"] = shown(fills);
        }
        stats["areas_not_counted"] = json!(silent);
        answer(stats)
    }
}

/// As in docs/statistics.md.
fn shown(fills: Fills) -> Value {
    let [free, partly @ .., full] = fills.opened;
    json!({
        "opened": fills.opened.iter().sum::<u64>(),
        "free": free,
        "by_eighths": partly,
        "full": full,
        "never_opened": fills.never,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_adds_up() {
        let fills = Fills { opened: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], never: 11 };
        let expected = json!({
            "opened": 55, "free": 1, "by_eighths": [2, 3, 4, 5, 6, 7, 8, 9], "full": 10, "never_opened": 11
        });
        assert_eq!(shown(fills), expected);
    }
}
