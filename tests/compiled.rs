//! Programs that tests execute while others run beside them: compiled by who wants them first, or copied. A module of the tests.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Has `output` made, at the path that `compile` is given, if it is not newer than all of its sources.
pub(crate) fn compiled(output: &Path, sources: &[PathBuf], compile: impl FnOnce(&Path)) {
    let time = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let is_new = || time(output).is_some_and(|made| sources.iter().all(|source| time(source).is_some_and(|at| at < made)));
    if is_new() {
        return;
    }
    fs::create_dir_all(output.parent().expect("a directory")).expect("a directory under target/");
    let beside = |ending: &str| PathBuf::from(format!("{}.{ending}", output.display()));
    let lock = File::create(beside("lock")).expect("a file under target/");
    flock(&lock, FlockOperation::LockExclusive).expect("locked");
    if !is_new() {
        // Nobody executes half of it, nor keeps it from being written.
        compile(&beside("new"));
        fs::rename(beside("new"), output).expect("renamed");
    }
}

/// Copies a program, by another process: a thread that starts a program meanwhile would pass on the descriptor that is open for
/// writing, and the copy could not be executed (ETXTBSY) while that lives.
pub(crate) fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").args([from, to]).status().expect("cp");
    assert!(status.success(), "{} can't be copied to {}", from.display(), to.display());
}
