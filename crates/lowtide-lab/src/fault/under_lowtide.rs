//! The program under `lowtide run`, beside other programs.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::program::{self, Told};
use crate::burners;
use crate::race::{Task, lowtide_program, run};

/// Longest run beside the time of touching.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub threads: usize,
    pub burners: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub pages: usize,
    /// `--ram` in bytes; `None`: no limit, and no lowtide.
    pub limit: Option<u64>,
}

/// lowtide's service of faults in microseconds: from a monitor's read until the page's install.
#[derive(Debug, Clone, Copy, Default)]
pub struct Service {
    pub faults: u64,
    /// Median.
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// Runs the program.
///
/// # Errors
/// A line: it can't be run, or failed.
pub fn measure(setup: Setup, size: Size, time: Duration) -> Result<(Told, Service), String> {
    let (told, stats) = (Mailbox::new()?, Mailbox::new()?);
    let mut before = burners::words(setup.burners)?;
    if let Some(limit) = size.limit {
        before.push(lowtide_program()?.into());
        let limit = limit.to_string();
        before.extend(["run", "--quiet", "--ram", &limit, "--swap", "ram", "--stats"].map(OsString::from));
        before.extend([stats.path().into(), "--".into()]);
    }
    let own = std::env::current_exe().map_err(|e| format!("can't find this program: {e}"))?;
    let numbers = [setup.threads.to_string(), size.pages.to_string(), time.as_secs_f64().to_string()];
    let mut command: Vec<OsString> = vec![own.into(), program::NAME.into()];
    command.extend(numbers.map(OsString::from));
    command.push(told.path().into());
    let task = Task { command, directory: "/".into(), client: None };
    let ended = run(&task, &before, time + PATIENCE, |_| ())?;
    ended.done().map_err(|why| format!("what touches pages with {} threads for {time:?} {why}", setup.threads))?;
    let service = if size.limit.is_some() { service(&stats.take()?)? } else { Service::default() };
    Ok((told.take()?, service))
}

fn service(stats: &Value) -> Result<Service, String> {
    let number =
        |path: &str| stats.pointer(path).and_then(Value::as_f64).ok_or_else(|| format!("lowtide's statistics have no {path}"));
    let [p50, p99, max] = ["p50", "p99", "max"].map(|name| number(&format!("/fault_latency_us/{name}")));
    Ok(Service { faults: number("/faults/total")? as u64, p50: p50?, p99: p99?, max: max? })
}

/// An unnamed file for a child process's result: it vanishes, however the experiment ends.
struct Mailbox(File);

impl Mailbox {
    fn new() -> Result<Mailbox, String> {
        let fd = memfd_create("lowtide-lab", MemfdFlags::CLOEXEC).map_err(|e| format!("no memfd: {e}"))?;
        Ok(Mailbox(fd.into()))
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    fn take<T: DeserializeOwned>(mut self) -> Result<T, String> {
        let mut text = String::new();
        self.0.rewind().and_then(|()| self.0.read_to_string(&mut text)).map_err(|e| format!("a memfd: {e}"))?;
        serde_json::from_str(&text).map_err(|e| format!("a program says nothing of what it found: {e}"))
    }
}
