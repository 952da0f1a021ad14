//! Programs with a library whose constructor starts threads: the C library's code must not be changed under their feet.

use crate::check::{Growth, ends_well, faults};
use crate::machine::{native_only, turn};
use crate::measure::{Limit, Swap};
use crate::programs::{job_with, library_as};

/// Starts a program often, and then evicts memory of it, with hooks: no warning says that there are none. `options`: of the
/// linker of its library.
fn starts(label: &str, variant: &str, options: &[&str]) {
    let Some(_turn) = turn() else { return };
    let Some(library) = library_as("starts_threads", variant, options) else { return };
    let Some(job) = job_with(label, "early_threads", variant, &library, "40 96") else { return };
    let native = job.native();
    assert!(ends_well(&native), "{native:?}");
    if native_only() {
        return;
    }
    let limit = Limit { ram: 40 << 20, swap: Swap::Ram };
    let limited = job.limited(&limit);
    let faults = faults(&native, &limited, &limit, Growth::Existing);
    assert!(faults.is_empty() && !limited.stderr.contains("warning"), "{faults:?}\n{}", limited.stderr);
}

/// Constructors of a program's libraries run before those of preloaded ones, but for lowtide's.
#[test]
fn of_a_library_of_the_program() {
    starts("threads of a library", "early", &[]);
}

/// A library can have itself initialised first of all, as lowtide does. Of two that ask for it, the one that was loaded last is.
#[test]
fn of_a_library_that_comes_first() {
    starts("threads of a first library", "first", &["-Wl,-z,initfirst"]);
}
