//! Finds a run by the pid of its `lowtide run` or of any of its processes.

use super::connection::Connection;
use super::text;
use crate::control::place::{self, Place};
use crate::error::Failure;
use serde_json::{Value, json};
use std::path::Path;
use std::rc::Rc;

pub struct Run {
    /// The directory of its socket.
    pub place: Rc<Place>,
    pub pid: u32,
}

/// All runs that this user may control, by pid. Removes the sockets of dead ones.
pub fn all() -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for place in place::all().into_iter().map(Rc::new) {
        place.sweep();
        runs.extend(place.pids().into_iter().map(|pid| Run { place: place.clone(), pid }));
    }
    runs.sort_by_key(|run| run.pid);
    runs
}

/// Connects to the run of `lowtide run` `pid`, or to the one that the process `pid` belongs to.
pub fn by_pid(pid: u32) -> Result<Connection, Failure> {
    let runs = all();
    for run in runs.iter().filter(|run| run.pid == pid) {
        if let Some(connection) = Connection::new(&run.place, pid)? {
            return Ok(connection);
        }
    }
    if pid == 0 || !Path::new(&format!("/proc/{pid}")).exists() {
        return Err(Failure::usage(format!("no process {pid}: `lowtide ps` lists the runs")));
    }
    for run in &runs {
        // A silent run may still be another one.
        let Ok(Some(mut connection)) = Connection::new(&run.place, run.pid) else { continue };
        if connection.answer("has", &[("pid", json!(pid))], |_| ()).is_ok_and(|answer| answer["has"] == true) {
            return Ok(connection);
        }
    }
    Err(Failure::usage(format!("process {pid} is not under `lowtide run` ({})", names(&runs))))
}

pub fn only() -> Result<Connection, Failure> {
    let runs = all();
    match &runs[..] {
        [] => Err(none()),
        [run] => Connection::new(&run.place, run.pid)?.ok_or_else(|| super::connection::ended(run.pid)),
        _ => Err(Failure::usage(format!("there are several runs, so say which by its pid ({})", names(&runs)))),
    }
}

pub fn none() -> Failure {
    Failure::usage("no run: start one with `lowtide run --ram SIZE PROGRAM`")
}

/// `runs of this user: 12 (sort), 15 (redis-server)`.
fn names(runs: &[Run]) -> String {
    let name = |run: &Run| {
        let answer = Connection::new(&run.place, run.pid).ok().flatten()?.answer("ps", &[], |_| ()).ok();
        Some(format!("{} ({})", run.pid, answer.as_ref().map_or("?".to_owned(), program)))
    };
    let names: Vec<String> = runs.iter().filter_map(name).collect();
    if names.is_empty() { "no runs of this user".to_owned() } else { format!("runs of this user: {}", names.join(", ")) }
}

/// The base name of a run's program.
pub fn program(answer: &Value) -> String {
    let whole = text(answer, "program");
    whole.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(&whole).to_owned()
}
