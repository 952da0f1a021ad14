//! A request to a run, and its outcome.

use crate::client::change::{limited, reclaimed, turned_off, turned_on};
use crate::client::connection::{Connection, PATIENCE, Said, ended, silent};
use crate::client::{find, number, swapoff};
use crate::swap::name;
use lowtide_config::size;
use serde_json::{Value, json};
use std::time::Instant;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// As `--ram`.
    Limit(String),
    /// Bytes to move out.
    Reclaim(String),
    /// As `--swap`.
    SwapOn(String),
    SwapOff(String),
}

impl Wish {
    pub fn name(&self) -> String {
        let (what, of) = match self {
            Wish::Limit(size) => ("limit", size),
            Wish::Reclaim(size) => ("reclaim", size),
            Wish::SwapOn(spec) => ("swapon", spec),
            Wish::SwapOff(spec) => ("swapoff", spec),
        };
        format!("{what} {of}")
    }

    fn request(&self) -> (&'static str, &'static str, Value) {
        match self {
            Wish::Limit(size) => ("limit", "size", json!(size)),
            Wish::Reclaim(size) => ("reclaim", "size", json!(size)),
            Wish::SwapOn(spec) => ("swapon", "spec", json!(name::absolute(spec))),
            Wish::SwapOff(spec) => ("swapoff", "spec", json!(spec)),
        }
    }

    fn done(&self, answer: &Value) -> String {
        match self {
            Wish::Limit(_) => limited(answer),
            Wish::Reclaim(_) => reclaimed(answer),
            Wish::SwapOn(_) => turned_on(answer),
            Wish::SwapOff(_) => turned_off(answer),
        }
    }

    fn progress(&self, report: &Value) -> Option<String> {
        let bytes = |key| size::show(number(report, key));
        match self {
            Wish::Limit(_) if report.get("ram_limit").is_some() => {
                Some(format!("limit {}: {} used, the rest is being moved out", bytes("ram_limit"), bytes("ram_now")))
            }
            Wish::Reclaim(_) if report.get("moved_bytes").is_some() => {
                Some(format!("{} moved out so far", bytes("moved_bytes")))
            }
            Wish::SwapOff(spec) if report.get("left_bytes").is_some() => {
                Some(format!("swapoff {spec} (c cancels): {}", swapoff::line(report)))
            }
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub line: String,
    pub is_error: bool,
}

impl Outcome {
    pub fn good(line: String) -> Outcome {
        Outcome { line, is_error: false }
    }

    pub fn bad(line: String) -> Outcome {
        Outcome { line, is_error: true }
    }
}

/// A running request on a connection of its own. Drop cancels it; a limit that is set stays.
pub struct Action {
    pub wish: Wish,
    connection: Connection,
    heard: Instant,
    progress: Option<String>,
}

impl Action {
    /// Sends the request to the run of this `lowtide run`.
    ///
    /// # Errors
    /// A line that says why it can't.
    pub fn start(pid: u32, wish: Wish) -> Result<Action, String> {
        let mut connection = find::all()
            .iter()
            .filter(|run| run.pid == pid)
            .find_map(|run| Connection::new(&run.place, pid).transpose())
            .unwrap_or_else(|| Err(ended(pid)))
            .map_err(|failure| failure.line)?;
        let (what, key, value) = wish.request();
        connection.ask(what, &[(key, value)]).map_err(|failure| failure.line)?;
        Ok(Action { wish, connection, heard: Instant::now(), progress: None })
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    pub fn line(&self) -> String {
        self.progress.clone().unwrap_or_else(|| format!("{} ...", self.wish.name()))
    }

    /// Takes the run's messages. None: it goes on.
    pub fn hear(&mut self) -> Option<Outcome> {
        loop {
            match self.connection.hear() {
                Ok(Said::Progress(report)) => {
                    self.heard = Instant::now();
                    self.progress = self.wish.progress(&report).or(self.progress.take());
                }
                Ok(Said::Answer(answer)) => {
                    let warnings = answer["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
                    let warnings: String = warnings.map(|warning| format!(" (warning: {warning})")).collect();
                    return Some(Outcome::good(self.wish.done(&answer) + &warnings));
                }
                Ok(Said::Error(failure)) | Err(failure) => return Some(Outcome::bad(failure.line)),
                Ok(Said::End) => return Some(Outcome::bad(ended(self.connection.pid).line)),
                Ok(Said::Nothing) if self.heard.elapsed() > PATIENCE => {
                    return Some(Outcome::bad(silent(self.connection.pid).line));
                }
                Ok(Said::Nothing) => return None,
            }
        }
    }

    /// Requests its end; its outcome is still to come.
    pub fn cancel(&mut self) {
        // `hear` reports a failure.
        let _ = self.connection.ask("cancel", &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_and_outcomes_in_words() {
        let off = Wish::SwapOff("dir:/x".to_owned());
        let report = json!({ "left_bytes": 100 << 20, "total_bytes": 300 << 20, "seconds": 2.0 });
        let line = off.progress(&report).unwrap();
        assert!(line.starts_with("swapoff dir:/x (c cancels): 100 MiB left of 300 MiB"), "{line}");
        assert_eq!(off.progress(&json!({})), None, "a sign of life is no progress");
        let done = off.done(&json!({ "spec": "dir:/x", "moved_bytes": 300 << 20, "seconds": 3.0 }));
        assert_eq!(done, "dir:/x: 300 MiB moved in 3.0 s, the area is off");
        let limit = Wish::Limit("64M".to_owned());
        assert_eq!(
            limit.done(&json!({ "ram_limit": 64 << 20, "ram_now": 60 << 20, "reached": true })),
            "limit 64 MiB, 60 MiB used"
        );
    }
}
