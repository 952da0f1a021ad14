//! `lowtide metrics`: the statistics of a run as OpenMetrics text.

use super::{failed, find, print};
use crate::error::Failure;

pub fn metrics(pid: Option<u32>) -> Result<u8, Failure> {
    let mut run = pid.map_or_else(find::only, find::by_pid)?;
    let answer = run.answer("metrics", &[], |_| ())?;
    let text = answer["text"].as_str();
    let text =
        text.ok_or_else(|| failed(format!("`lowtide run` {} has no metrics: use the `lowtide` that started it", run.pid)))?;
    // Another user's run may send anything; newlines are its own.
    print(&text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect::<String>())?;
    Ok(0)
}
