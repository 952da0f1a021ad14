//! Tests that can't run on a machine say so, and are counted: `make test` says at its end how many they were, and why
//! (`tests/skipped.py`). A module of the tests of all crates.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// The test that calls this, or a part of it, is skipped. `LOWTIDE_SKIPPED` names the file in which that is counted.
pub(crate) fn skipped(why: impl Display) {
    // (What tests print by `eprintln!` nobody sees of a test that passes.)
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
    let Some(path) = std::env::var_os("LOWTIDE_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = std::format!("{}\t{why}", thread.name().unwrap_or("a test")).replace('\n', " ") + "\n";
    // In one write, because tests run side by side.
    let written = OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the skipped test is counted");
}
