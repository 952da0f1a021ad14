//! A program under lowtide that goes on.

use crate::LOWTIDE;
use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// A program under lowtide that has told us a line.
pub struct Running {
    pub child: Child,
    pub line: String,
    pub dir: tempfile::TempDir,
}

impl Running {
    /// `script` must print one line when it is ready.
    pub fn new(script: &str) -> Running {
        let dir = tempfile::tempdir().expect("a directory");
        // What was started in the background ignores SIGINT, and a shell can't trap what it was told to ignore.
        let mut command = Command::new("env");
        command.env_remove("LOWTIDE_SEGMENT").args(["--default-signal=INT", LOWTIDE]);
        command.args(["run", "--ram", "64M", "--stats"]).arg(dir.path().join("stats.json"));
        command.args([OsStr::new("--"), OsStr::new("sh"), OsStr::new("-c"), OsStr::new(script)]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("lowtide starts");
        let mut line = String::new();
        BufReader::with_capacity(1, child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
        Running { child, line: line.trim().to_owned(), dir }
    }

    /// What the program says next.
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.child.stdout.as_mut().expect("piped");
        BufReader::with_capacity(1, stdout).read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(pid_of(&self.child), signal).expect("signal");
    }

    pub fn output(mut self) -> (Option<i32>, String, String, serde_json::Value) {
        drop(self.child.stdin.take());
        let (mut out, mut err) = (String::new(), String::new());
        self.child.stdout.take().expect("piped").read_to_string(&mut out).expect("read");
        self.child.stderr.take().expect("piped").read_to_string(&mut err).expect("read");
        let code = self.child.wait().expect("ended").code();
        let files = std::fs::read_dir(self.dir.path()).expect("read").count();
        assert_eq!(files, 1, "something is left beside the statistics");
        let stats = std::fs::read(self.dir.path().join("stats.json")).expect("statistics");
        (code, out, err, serde_json::from_slice(&stats).expect("JSON"))
    }
}

pub fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).expect("a pid")
}
