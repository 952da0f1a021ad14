//! `swapoff`: empties and removes an area, or leaves it in use as a whole.

use super::evacuation::{Evacuation, Found};
use super::task::{answer, failure};
use super::{Answer, Live, Step, Task, admission, areas};
use crate::error::Failure;
use crate::swap::name::Which;
use lowtide_config::size;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const REPORTS: Duration = Duration::from_millis(250);

struct Swapoff {
    spec: String,
    place: usize,
    evacuation: Evacuation,
    reported: Option<Instant>,
}

/// Refuses if the area's pages have no room elsewhere.
pub fn start(asked: &str, run: &mut Live<'_>) -> Result<Box<dyn Task>, Failure> {
    let refused = |why: String| Failure::usage(format!("swapoff {asked}: {why}"));
    let which = Which::parse(asked).map_err(refused)?;
    let Some((place, area)) = run.areas.find(&which) else {
        return Err(refused(format!("the run has no such area; {}", run.areas.names())));
    };
    if area.state == areas::State::Emptying {
        return Err(refused("it is being taken off already: wait for that, or cancel it".to_owned()));
    }
    let spec = area.spec.clone();
    admission::check(run, place, &spec).map_err(Failure::usage)?;
    let order = run.areas.empty(place);
    let evacuation = Evacuation::new(run.shared.segment(), place, order, Instant::now());
    Ok(Box::new(Swapoff { spec, place, evacuation, reported: None }))
}

impl Task for Swapoff {
    fn step(&mut self, run: &mut Live<'_>) -> Step {
        let now = Instant::now();
        match self.evacuation.look(run.shared.segment(), now) {
            Found::Going => Step::Going(self.report(run, now)),
            Found::Empty => {
                run.areas.is_empty_now(self.place);
                let (moved, seconds) = (self.evacuation.total, self.evacuation.elapsed(now).as_secs_f64());
                Step::Done(answer(json!({ "spec": self.spec, "moved_bytes": moved, "seconds": seconds })))
            }
            Found::NoRoom(bytes) => {
                let (left, pid) = (size::show(bytes), std::process::id());
                let how = format!("add an area (`lowtide swapon {pid} SPEC`) or raise the limit");
                Step::Done(Err(self.give_up(&format!("there is no room for {left} elsewhere: {how}"), run)))
            }
            Found::Unreadable { pid, address, pages } => {
                let why = format!(
                    "{pages} pages can't be read, the first of them at {address:#x} of process {pid}: \
                     the program will be stopped when it touches one"
                );
                Step::Done(Err(self.give_up(&why, run)))
            }
        }
    }

    fn cancel(&mut self, run: &mut Live<'_>) -> Answer {
        self.keep(run);
        let moved = size::show(self.evacuation.moved());
        Err(failure(format!("swapoff {}: cancelled: {moved} were moved, the area stays in use", self.spec)))
    }
}

impl Swapoff {
    fn report(&mut self, run: &Live<'_>, now: Instant) -> Option<Value> {
        if self.reported.is_some_and(|at| now - at < REPORTS) {
            return None;
        }
        self.reported = Some(now);
        Some(json!({
            "left_bytes": self.evacuation.left,
            "total_bytes": self.evacuation.total,
            "seconds": self.evacuation.elapsed(now).as_secs_f64(),
            "waiting_for": self.evacuation.waits_for(run.shared.segment(), now),
        }))
    }

    fn keep(&self, run: &mut Live<'_>) {
        run.areas.keep_on(self.place);
    }

    fn give_up(&self, why: &str, run: &mut Live<'_>) -> Failure {
        self.keep(run);
        let moved = size::show(self.evacuation.moved());
        failure(format!("swapoff {}: {why}; {moved} were moved, the area stays in use", self.spec))
    }
}
