//! `lowtide limit`, `reclaim` and `swapon`: a change, and what has become of it.

use super::ps::time;
use super::{find, number, print, show_warnings};
use crate::error::Failure;
use crate::size;
use crate::swap_name;
use serde_json::{Value, json};

/// Sets another limit.
pub fn limit(pid: u32, size: &str, wait: bool) -> Result<u8, Failure> {
    let mut run = find::by_pid(pid)?;
    let answer = run.answer("limit", &[("size", json!(size)), ("wait", json!(wait))], |_| ())?;
    show_warnings(&answer);
    let [limit, now] = ["ram_limit", "ram_now"].map(|key| size::show(number(&answer, key)));
    let mut line = format!("limit {limit}, {now} used");
    if answer["reached"] != true {
        line += ": the rest is being moved out";
    }
    print(&(line + "\n"))?;
    Ok(0)
}

/// Moves pages out.
pub fn reclaim(pid: u32, size: &str) -> Result<u8, Failure> {
    let mut run = find::by_pid(pid)?;
    let answer = run.answer("reclaim", &[("size", json!(size))], |_| ())?;
    let [moved, before, now] = ["moved_bytes", "ram_before", "ram_now"].map(|key| size::show(number(&answer, key)));
    print(&format!("{moved} moved out, {before} used before, {now} now\n"))?;
    Ok(0)
}

/// Adds a swap area.
pub fn swapon(pid: u32, spec: &str) -> Result<u8, Failure> {
    let mut run = find::by_pid(pid)?;
    let answer = run.answer("swapon", &[("spec", json!(swap_name::absolute(spec)))], |_| ())?;
    show_warnings(&answer);
    let (spec, size) = (super::text(&answer, "spec"), size::show(number(&answer, "size")));
    let prio = answer["prio"].as_i64().unwrap_or(0);
    print(&format!("{spec}: up to {size}, priority {prio}\n"))?;
    Ok(0)
}

/// `812 MiB moved in 3.1 s`.
pub fn moved(answer: &Value) -> String {
    let seconds = answer["seconds"].as_f64().unwrap_or(0.0);
    format!("{} moved in {}", size::show(number(answer, "moved_bytes")), time(seconds))
}
