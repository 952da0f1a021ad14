//! The ways a program ends: its exit status is the program's own, and nobody hangs.

use crate::check::{Data, Growth, compare};
use crate::machine::turn;
use crate::programs::job;

fn ends(mode: &str, status: i32) {
    let Some(_turn) = turn() else { return };
    let Some(job) = job(&format!("ends by {mode}"), "exits", &format!("{mode} 96")) else { return };
    compare(&job, Growth::Existing, Data::Any, |outcome| outcome.status == status && outcome.stdout.starts_with("OK"));
}

#[test]
fn by_return() {
    ends("return", 0);
}

#[test]
fn by_exit() {
    ends("exit", 7);
}

#[test]
fn by_immediate_exit() {
    ends("_exit", 8);
}

#[test]
fn by_sigterm() {
    ends("term", 128 + 15);
}

#[test]
fn by_segmentation_fault() {
    ends("segv", 128 + 11);
}

#[test]
fn by_abort() {
    ends("abort", 128 + 6);
}

#[test]
fn after_the_main_thread() {
    ends("main-thread", 5);
}
