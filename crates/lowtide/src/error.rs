//! Error lines on standard error, each beginning `lowtide:`, and the exit codes.

use std::io::Write;

pub const USAGE: u8 = 2;
/// `lowtide` itself failed, or this machine can't do it.
pub const FAILED: u8 = 125;
/// The program can't be run, at all or under lowtide.
pub const NOT_EXECUTABLE: u8 = 126;
pub const NOT_FOUND: u8 = 127;

/// One line with what is wrong and what to do, and the exit code.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: u8,
    /// The line, without `lowtide:`.
    pub line: String,
}

impl Failure {
    pub fn usage(line: impl Into<String>) -> Self {
        Failure { code: USAGE, line: line.into() }
    }

    pub fn failed(line: impl Into<String>) -> Self {
        Failure { code: FAILED, line: line.into() }
    }

    pub fn not_executable(line: impl Into<String>) -> Self {
        Failure { code: NOT_EXECUTABLE, line: line.into() }
    }

    pub fn not_found(line: impl Into<String>) -> Self {
        Failure { code: NOT_FOUND, line: line.into() }
    }
}

/// Prints `lowtide: LINE` on standard error in one write. Control characters, as of file names,
/// become `?`: it stays one line. Ignores errors.
pub fn say(line: &str) {
    let mut text = String::with_capacity(line.len() + 10);
    text.push_str("lowtide: ");
    text.extend(line.chars().map(|c| if c.is_control() { '?' } else { c }));
    text.push('\n');
    let _ = std::io::stderr().write_all(text.as_bytes());
}
