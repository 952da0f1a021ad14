//! The commands that query or change a run: the other side of [`crate::control`].

pub mod change;
pub mod connection;
pub mod find;
mod metrics;
pub mod ps;
mod stat;
pub mod swapoff;

pub use metrics::metrics;
pub use ps::ps;
pub use stat::stat;

use crate::error::Failure;
use crate::signal_fd::{SignalFd, SignalSet};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{self, Write};

pub const ENDS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Blocks these signals for a signalfd. Call it before other threads exist.
pub fn hold_back(signals: &[Signal]) -> Result<SignalFd, Failure> {
    let held = SignalFd::new(&SignalSet::of(signals));
    held.map(|(held, _)| held).map_err(|error| failed(format!("can't wait for signals ({error})")))
}

/// Exit status 1: no usage error.
fn failed(line: impl Into<String>) -> Failure {
    Failure { code: 1, line: line.into() }
}

pub fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}

/// A text of an answer, made printable: another user's run may send anything.
pub fn text(value: &Value, key: &str) -> String {
    clean(value[key].as_str().unwrap_or("?"))
}

fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn show_warnings(answer: &Value) {
    for warning in answer["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        crate::error::say(&format!("warning: {warning}"));
    }
}

/// False: the reader of standard output is gone.
fn print(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(failed(format!("standard output can't be written ({error})"))),
    }
}

/// Aligns columns; a `>` before the heading aligns right.
fn table(headings: &[&str], rows: &[Vec<String>], indent: &str) -> String {
    let width = |i: usize| {
        let cells = rows.iter().map(|row| row[i].chars().count());
        cells.max().unwrap_or(0).max(headings[i].trim_start_matches('>').chars().count())
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut all = String::new();
    let head: Vec<String> = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = indent.to_owned();
        for ((cell, heading), width) in row.iter().zip(headings).zip(&widths) {
            let width = *width;
            line += &if heading.starts_with('>') { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
        }
        all += line.trim_end();
        all.push('\n');
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let rows = [vec!["1".to_owned(), "sort".to_owned()], vec!["4242".to_owned(), "é".to_owned()]];
        assert_eq!(table(&[">PID", "PROGRAM"], &rows, " "), "  PID  PROGRAM\n    1  sort\n 4242  é\n");
    }

    #[test]
    fn what_is_shown_is_clean() {
        assert_eq!(text(&serde_json::json!({ "program": "a\u{1b}[2Jb\n" }), "program"), "a?[2Jb?");
    }
}
