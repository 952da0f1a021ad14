//! `lowtide limit`, `reclaim` and `swapon`.

use super::ps::time;
use super::{find, number, print, show_warnings};
use crate::error::Failure;
use crate::swap;
use lowtide_config::size;
use serde_json::{Value, json};

pub fn limit(pid: u32, size: &str, wait: bool) -> Result<u8, Failure> {
    let mut run = find::by_pid(pid)?;
    let answer = run.answer("limit", &[("size", json!(size)), ("wait", json!(wait))], |_| ())?;
    show_warnings(&answer);
    print(&(limited(&answer) + "\n"))?;
    Ok(0)
}

/// `limit 512 MiB, 498 MiB used`.
pub fn limited(answer: &Value) -> String {
    let [limit, now] = ["ram_limit", "ram_now"].map(|key| size::show(number(answer, key)));
    let rest = if answer["reached"] == true { "" } else { ": the rest is being moved out" };
    format!("limit {limit}, {now} used{rest}")
}

pub fn reclaim(pid: u32, size: &str) -> Result<u8, Failure> {
    let mut run = find::by_pid(pid)?;
    let answer = run.answer("reclaim", &[("size", json!(size))], |_| ())?;
    print(&(reclaimed(&answer) + "\n"))?;
    Ok(0)
}

/// `64 MiB moved out, 512 MiB used before, 450 MiB now`.
pub fn reclaimed(answer: &Value) -> String {
    let [moved, before, now] = ["moved_bytes", "ram_before", "ram_now"].map(|key| size::show(number(answer, key)));
    format!("{moved} moved out, {before} used before, {now} now")
}

pub fn swapon(pid: u32, spec: &str) -> Result<u8, Failure> {
    let mut run = find::by_pid(pid)?;
    let answer = run.answer("swapon", &[("spec", json!(swap::name::absolute(spec)))], |_| ())?;
    show_warnings(&answer);
    print(&(turned_on(&answer) + "\n"))?;
    Ok(0)
}

/// `dir:/x: up to 8 GiB, priority -2`.
pub fn turned_on(answer: &Value) -> String {
    let (spec, size) = (super::text(answer, "spec"), size::show(number(answer, "size")));
    let prio = answer["prio"].as_i64().unwrap_or(0);
    format!("{spec}: up to {size}, priority {prio}")
}

/// `dir:/x: 812 MiB moved in 3.1 s, the area is off`.
pub fn turned_off(answer: &Value) -> String {
    let (spec, moved) = (super::text(answer, "spec"), size::show(number(answer, "moved_bytes")));
    let seconds = answer["seconds"].as_f64().unwrap_or(0.0);
    format!("{spec}: {moved} moved in {}, the area is off", time(seconds))
}
