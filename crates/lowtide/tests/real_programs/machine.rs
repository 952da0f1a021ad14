//! What this machine can do, and whose turn it is.

#[allow(clippy::duplicate_mod)]
#[path = "../../../../tests/skipped.rs"]
pub mod skipped;
#[allow(clippy::duplicate_mod)]
#[path = "../../../../tests/turn.rs"]
mod turn;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::mm::UserfaultfdFlags;
pub(crate) use turn::{Turn, be_alone};

/// Says something whether the test passes or not (the test harness shows `println!` only of failed tests).
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// With `CI` set, what would be skipped fails.
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "cannot run here, and CI must not skip: {why}");
    skipped::skipped(why);
}

/// Only the native halves run: for checking the tests themselves.
pub fn native_only() -> bool {
    std::env::var_os("LOWTIDE_TESTS_NATIVE_ONLY").is_some_and(|value| value != "0")
}

/// Why lowtide can't serve a program on this machine.
fn missing() -> Option<String> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < (6, 8) {
        return Some(format!("UFFDIO_MOVE needs Linux 6.8, this is {release}"));
    }
    // SAFETY: only makes a descriptor, closed at once.
    match unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC) } {
        Ok(_) => None,
        Err(_) if std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").is_ok() => None,
        Err(error) => {
            Some(format!("userfaultfd: {error}; run the tests as root, or allow it: sudo sysctl vm.unprivileged_userfaultfd=1"))
        }
    }
}

/// Whether lowtide can work; said loudly where it can't.
fn works() -> bool {
    match missing() {
        Some(why) if !native_only() => {
            skip(&why);
            false
        }
        _ => true,
    }
}

/// The turn of a test that no other test runs beside from its first limited run on (native ones bound nothing); None, said loudly,
/// where lowtide can't work.
pub(crate) fn turn() -> Option<Turn> {
    works().then(turn::alone_later)
}

/// The same, for a test that has no native half.
pub(crate) fn limited_turn() -> Option<Turn> {
    if native_only() { None } else { turn() }
}

/// The turn of a test beside which others may run: one that bounds neither memory nor rates, and whose files, programs and names are
/// its own.
pub(crate) fn turn_beside() -> Option<Turn> {
    works().then(turn::beside)
}

/// The same, for a test that has no native half.
pub(crate) fn limited_turn_beside() -> Option<Turn> {
    if native_only() { None } else { turn_beside() }
}

/// A program of this machine, by name; None (said loudly) where it is not installed.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|path| path.is_file());
    if found.is_none() {
        skip(&format!("{name} is not installed (make setup)"));
    }
    found
}

/// The Python that has numpy, made by `make setup`.
pub fn python() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?.join("venv/bin/python");
    if !python.is_file() {
        skip(&format!("{} is missing (make setup)", python.display()));
        return None;
    }
    Some(python)
}
