//! What goes to standard error: one line each, beginning `lowtide:`; and the exit codes.

use std::io::Write;

/// Bad usage.
pub const USAGE: u8 = 2;
/// `lowtide` itself failed, or this machine can't do it.
pub const FAILED: u8 = 125;
/// The program was found but can't be run (under lowtide).
pub const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;

/// Why nothing was run: what is wrong and what to do, in one line, and the exit code.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// The line, without `lowtide:`.
    pub line: String,
}

impl Failure {
    /// Bad usage: exit code 2.
    pub fn usage(line: impl Into<String>) -> Self {
        Failure { code: USAGE, line: line.into() }
    }

    /// lowtide can't: exit code 125.
    pub fn failed(line: impl Into<String>) -> Self {
        Failure { code: FAILED, line: line.into() }
    }

    /// The program can't be run: exit code 126.
    pub fn not_executable(line: impl Into<String>) -> Self {
        Failure { code: NOT_EXECUTABLE, line: line.into() }
    }

    /// The program isn't there: exit code 127.
    pub fn not_found(line: impl Into<String>) -> Self {
        Failure { code: NOT_FOUND, line: line.into() }
    }
}

/// Prints `lowtide: LINE` on standard error in one write. Control characters (file names may hold some) become `?`, so that it
/// stays one line; an error is ignored, there is nobody left to tell.
pub fn say(line: &str) {
    let mut text = String::with_capacity(line.len() + 10);
    text.push_str("lowtide: ");
    text.extend(line.chars().map(|c| if c.is_control() { '?' } else { c }));
    text.push('\n');
    let _ = std::io::stderr().write_all(text.as_bytes());
}
