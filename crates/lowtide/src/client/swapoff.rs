//! `lowtide swapoff`: shows its progress; ^C leaves the area in use.

use super::change::turned_off;
use super::connection::{Connection, PATIENCE, Said, ended, silent, wait};
use super::ps::time;
use super::{find, number, print};
use crate::error::Failure;
use crate::signal_fd::SignalFd;
use crate::swap;
use indicatif::{ProgressBar, ProgressStyle};
use lowtide_config::size;
use rustix::event::{PollFd, PollFlags};
use serde_json::{Value, json};
use std::time::Instant;

pub fn swapoff(pid: u32, spec: &str) -> Result<u8, Failure> {
    let mut run = find::by_pid(pid)?;
    let interrupt = super::hold_back(&super::ENDS)?;
    run.ask("swapoff", &[("spec", json!(swap::name::absolute(spec)))])?;
    let shown = Shown::new();
    let done = follow(&mut run, &interrupt, &shown);
    shown.clear();
    done
}

fn follow(run: &mut Connection, interrupt: &SignalFd, shown: &Shown) -> Result<u8, Failure> {
    let mut cancelled = None;
    let mut heard = Instant::now();
    loop {
        match run.hear()? {
            Said::Progress(progress) => {
                heard = Instant::now();
                shown.show(&progress);
                continue;
            }
            Said::Answer(answer) => {
                shown.clear();
                print(&(turned_off(&answer) + "\n"))?;
                return Ok(0);
            }
            Said::Error(failure) => {
                let code = cancelled.map_or(failure.code, |signal: u8| 128 + signal);
                return Err(Failure { code, ..failure });
            }
            Said::End => return Err(ended(run.pid)),
            Said::Nothing => {}
        }
        if heard.elapsed() > PATIENCE {
            return Err(silent(run.pid));
        }
        let mut polled = [PollFd::new(run, PollFlags::IN), PollFd::new(interrupt, PollFlags::IN)];
        wait(&mut polled, PATIENCE);
        if let Some(received) = interrupt.next() {
            let signal = received.signal.as_raw() as u8;
            if cancelled.is_some() {
                // Closing the connection cancels as well.
                return Err(Failure { code: 128 + signal, line: "left: the area stays in use".to_owned() });
            }
            cancelled = Some(signal);
            run.ask("cancel", &[])?;
        }
    }
}

/// A progress bar, if standard error is a terminal.
struct Shown(ProgressBar);

impl Shown {
    fn new() -> Shown {
        let style = ProgressStyle::with_template("[{bar:24}] {wide_msg}").map(|style| style.progress_chars("=> "));
        Shown(ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    fn show(&self, progress: &Value) {
        if progress.get("left_bytes").is_none() {
            return;
        }
        let total = number(progress, "total_bytes");
        self.0.set_length(total);
        self.0.set_position(total.saturating_sub(number(progress, "left_bytes")));
        self.0.set_message(line(progress));
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// `312 MiB left of 812 MiB, 120.3 MB/s, 2.7 s to go`.
pub fn line(progress: &Value) -> String {
    let (left, total) = (number(progress, "left_bytes"), number(progress, "total_bytes"));
    let seconds = progress["seconds"].as_f64().unwrap_or(0.0);
    let speed = if seconds > 0.0 { total.saturating_sub(left) as f64 / seconds } else { 0.0 };
    let mut line = format!("{} left of {}", size::show(left), size::show(total));
    if speed > 0.0 {
        line += &format!(", {:.1} MB/s, {} to go", speed / 1e6, time(left as f64 / speed));
    }
    let waiting: Vec<String> =
        progress["waiting_for"].as_array().into_iter().flatten().filter_map(Value::as_u64).map(|pid| pid.to_string()).collect();
    if let Some(first) = waiting.first() {
        let others = if waiting.len() > 1 { format!(" and {} others", waiting.len() - 1) } else { String::new() };
        line += &format!(", waiting for process {first}{others}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_in_words() {
        let progress = |left: u64, seconds: f64, pids: &[u32]| {
            line(&json!({ "left_bytes": left, "total_bytes": 300 << 20, "seconds": seconds, "waiting_for": pids }))
        };
        assert_eq!(progress(300 << 20, 0.0, &[]), "300 MiB left of 300 MiB");
        assert_eq!(progress(100 << 20, 2.0, &[]), "100 MiB left of 300 MiB, 104.9 MB/s, 1.0 s to go");
        assert_eq!(progress(300 << 20, 4.0, &[12]), "300 MiB left of 300 MiB, waiting for process 12");
        assert!(progress(300 << 20, 4.0, &[12, 13, 14]).ends_with("process 12 and 2 others"));
    }
}
