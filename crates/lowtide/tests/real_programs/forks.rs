//! Children: those that exec at once, those that stay, those that outlive their parent.

use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::turn;
use crate::programs::job;

fn forks(mode: &str, arguments: &str) {
    let Some(_turn) = turn() else { return };
    let Some(job) = job(&format!("forks, {mode}"), "forks", &format!("{mode} {arguments}")) else { return };
    // While a child shares its pages, a parent can evict nothing of them, and what it overwrites is new to it: like a stream.
    compare(&job, Growth::Stream, Data::Compressible, ends_well);
}

#[test]
fn fork_and_exec() {
    forks("exec", "128 40");
}

#[test]
fn spawn_and_vfork() {
    forks("spawn", "128 100");
}

#[test]
fn child_stays() {
    forks("stay", "128 3");
}

#[test]
fn child_outlives_its_parent() {
    forks("orphan", "128");
}

#[test]
fn fork_from_a_thread() {
    forks("thread", "128 3");
}

#[test]
fn three_generations() {
    forks("nested", "96");
}

#[test]
fn bare_system_calls() {
    forks("raw", "128 1");
}
