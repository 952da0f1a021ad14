//! The kernel reads and writes swapped memory for the program: files, O_DIRECT, pipes, sockets, futexes, signal frames.

use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::turn;
use crate::programs::job;

#[test]
fn on_swapped_memory() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("system calls", "system_calls", "160 2") else { return };
    compare(&job, Growth::Existing, Data::Compressible, ends_well);
}
