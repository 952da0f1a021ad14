//! `lowtide` from outside: what it refuses, and that a program keeps the world it would have without it.

mod help;
mod options;
mod privilege;
mod programs;
mod running;
#[path = "../../../../tests/skipped.rs"]
mod skipped;
mod stand_in;
mod surroundings;
mod swap;
mod verbosity;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const LOWTIDE: &str = env!("CARGO_BIN_EXE_lowtide");

fn lowtide() -> Command {
    let mut command = Command::new(LOWTIDE);
    for name in ["LOWTIDE_RAM", "LOWTIDE_DIR", "LOWTIDE_SEGMENT", "LOWTIDE_SLOTS", "LOWTIDE_FOLIOS", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs it with these arguments; `{}` in the text stands for `file`.
fn with(line: &str, file: &Path) -> Output {
    let args = line.split_whitespace().map(|word| word.replace("{}", file.to_str().expect("UTF-8")));
    lowtide().args(args).output().expect("lowtide starts")
}

/// Exactly one line on standard error, nothing on standard output, this exit code, and all the words in the line.
#[track_caller]
fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert!(line.starts_with("lowtide: ") && line.ends_with('\n') && line.matches('\n').count() == 1, "not one line: {line:?}");
    for word in words {
        assert!(line.contains(word), "`{word}` is not in: {line}");
    }
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[track_caller]
fn refused(line: &str, code: i32, words: &[&str]) {
    assert_refused(&with(line, Path::new("")), code, words);
}

/// Whether this user may run programs under lowtide at all; doctor says why not.
fn works() -> bool {
    let good = lowtide().arg("doctor").output().expect("lowtide starts").status.success();
    if !good {
        skipped::skipped("`lowtide doctor` says that run doesn't work here");
    }
    good
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A copy of `true` that can be spoilt.
struct Spoilt {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Spoilt {
    fn new(spoil: impl FnOnce(&mut Vec<u8>)) -> Spoilt {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("program");
        let mut bytes = std::fs::read("/bin/true").expect("true");
        spoil(&mut bytes);
        std::fs::write(&path, bytes).expect("written");
        let spoilt = Spoilt { dir, path };
        spoilt.mode(0o755);
        spoilt
    }

    fn script(text: &str) -> Spoilt {
        Spoilt::new(|bytes| *bytes = text.as_bytes().to_vec())
    }

    fn mode(&self, mode: u32) {
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(mode)).expect("mode");
    }

    #[track_caller]
    fn refused(&self, code: i32, words: &[&str]) {
        let mut all = vec![self.path.to_str().expect("UTF-8")];
        all.extend(words);
        assert_refused(&with("run --ram 64M -- {}", &self.path), code, &all);
    }
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|window| window == what).expect("found in the file")
}
