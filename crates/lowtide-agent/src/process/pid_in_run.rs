//! The number by which `lowtide run` knows this process: its pid, except in another pid namespace.
//! Every process of a run computes it, and a namespace check takes the kernel 20 us, so it is
//! avoided if possible.

use core::sync::atomic::{AtomicBool, Ordering};

use lowtide_wire::segment::FileId;
use rustix::process::getppid;

use crate::process::agent::{self, Number};

/// /proc is of `lowtide run`'s pid namespace: it was found there by its pid.
static PROC_IS_THE_RUNS: AtomicBool = AtomicBool::new(false);
/// In a new child, its parent's. (Its place in the segment may be another process's by now.)
static IS_ELSEWHERE: AtomicBool = AtomicBool::new(false);

fn found(there: Option<u32>, own: u32, is_elsewhere: bool) -> Number {
    IS_ELSEWHERE.store(is_elsewhere, Ordering::Relaxed);
    Number { there: there.unwrap_or(own), is_elsewhere }
}

pub fn is_elsewhere() -> bool {
    IS_ELSEWHERE.load(Ordering::Relaxed)
}

/// `by_number`: the settings were found by `lowtide run`'s pid in /proc.
pub fn of_image(by_number: bool) -> Number {
    PROC_IS_THE_RUNS.store(by_number, Ordering::Relaxed);
    let own = agent::pid();
    let there = by_number.then(in_proc).flatten();
    // If both agree, `lowtide run` knows it by that pid. (Elsewhere that is a coincidence, and
    // thread ids differ.)
    found(there, own, there != Some(own) && is_in_another_namespace())
}

pub fn of_child(parent: u32) -> Number {
    let own = agent::pid();
    // A parent is visible only in the same namespace.
    let with_parent = getppid().is_some_and(|pid| pid.as_raw_pid() as u32 == parent);
    let is_elsewhere = if with_parent { is_elsewhere() } else { is_in_another_namespace() };
    let there = (is_elsewhere && PROC_IS_THE_RUNS.load(Ordering::Relaxed)).then(in_proc).flatten();
    found(there, own, is_elsewhere)
}

fn in_proc() -> Option<u32> {
    let mut number = [0u8; 16];
    let len = rustix::fs::readlinkat_raw(rustix::fs::CWD, c"/proc/self", &mut number[..]).ok()?;
    core::str::from_utf8(number.get(..len)?).ok()?.parse().ok()
}

fn is_in_another_namespace() -> bool {
    let here = rustix::fs::stat(c"/proc/self/ns/pid").map(|stat| FileId { device: stat.st_dev, inode: stat.st_ino });
    here != Ok(agent::settings().pid_namespace)
}
