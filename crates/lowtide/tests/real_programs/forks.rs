//! Children: those that exec at once, those that stay, those that outlive their parent.

use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::turn;
use crate::programs::job;

/// A child that stays has as much memory again as its parent: compressed RAM alone can't hold both.
const STAYING: Data = Data::Any;

fn forks(mode: &str, arguments: &str, data: Data) {
    let Some(_turn) = turn() else { return };
    let Some(job) = job(&format!("forks, {mode}"), "forks", &format!("{mode} {arguments}")) else { return };
    // While a child shares its pages, a parent can evict nothing of them, and what it overwrites is new to it: like a stream.
    compare(&job, Growth::Stream, data, ends_well);
}

#[test]
fn fork_and_exec() {
    forks("exec", "128 40", Data::Compressible);
}

#[test]
fn spawn_and_vfork() {
    forks("spawn", "128 100", Data::Compressible);
}

#[test]
fn child_stays() {
    forks("stay", "128 3", STAYING);
}

#[test]
fn child_outlives_its_parent() {
    forks("orphan", "128", STAYING);
}

#[test]
fn fork_from_a_thread() {
    forks("thread", "128 3", STAYING);
}

#[test]
fn three_generations() {
    forks("nested", "96", STAYING);
}

#[test]
fn bare_system_calls() {
    forks("raw", "128 1", STAYING);
}
