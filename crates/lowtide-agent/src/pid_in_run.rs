//! By which number `lowtide run` knows this process: its pid, but for one in another pid namespace. Asked in each process of a
//! run, however short, so what is certain is not asked for: to tell a namespace, the kernel makes what takes 20 microseconds.

use core::sync::atomic::{AtomicBool, Ordering};

use lowtide_pager::segment::FileId;
use rustix::process::getppid;

use crate::agent::{self, Number};

/// /proc is that of `lowtide run`'s pid namespace: it was found there by its number.
static PROC_IS_THE_RUNS: AtomicBool = AtomicBool::new(false);
/// What was found out of this process, or, in a forked child that has not asked yet, of its parent. (Not what stands in the
/// segment, where the place may be another's by now.)
static IS_ELSEWHERE: AtomicBool = AtomicBool::new(false);

fn found(there: Option<u32>, own: u32, is_elsewhere: bool) -> Number {
    IS_ELSEWHERE.store(is_elsewhere, Ordering::Relaxed);
    Number { there: there.unwrap_or(own), is_elsewhere }
}

/// Whether this process is in another pid namespace than `lowtide run`.
pub fn is_elsewhere() -> bool {
    IS_ELSEWHERE.load(Ordering::Relaxed)
}

/// This process's, which has just been executed. `by_number`: the settings were found by the number of `lowtide run` in /proc.
pub fn of_image(by_number: bool) -> Number {
    PROC_IS_THE_RUNS.store(by_number, Ordering::Relaxed);
    let own = agent::pid();
    let there = by_number.then(in_proc).flatten();
    // Where the two are the same, `lowtide run` knows it by that number. (In another namespace that is a coincidence, and then
    // the numbers of its threads are not the same.)
    found(there, own, there != Some(own) && is_in_another_namespace())
}

/// This process's, which has just been forked by handlers that ran in `parent`, whose pid that is.
pub fn of_child(parent: u32) -> Number {
    let own = agent::pid();
    // Only a parent in the same namespace has a number here.
    let with_parent = getppid().is_some_and(|pid| pid.as_raw_pid() as u32 == parent);
    let is_elsewhere = if with_parent { is_elsewhere() } else { is_in_another_namespace() };
    let there = (is_elsewhere && PROC_IS_THE_RUNS.load(Ordering::Relaxed)).then(in_proc).flatten();
    found(there, own, is_elsewhere)
}

/// The number of this process in the pid namespace of /proc.
fn in_proc() -> Option<u32> {
    let mut number = [0u8; 16];
    let len = rustix::fs::readlinkat_raw(rustix::fs::CWD, c"/proc/self", &mut number[..]).ok()?;
    core::str::from_utf8(number.get(..len)?).ok()?.parse().ok()
}

fn is_in_another_namespace() -> bool {
    let here = rustix::fs::stat(c"/proc/self/ns/pid").map(|stat| FileId { device: stat.st_dev, inode: stat.st_ino });
    here != Ok(agent::settings().pid_namespace)
}
