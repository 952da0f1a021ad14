//! One run under a `lowtide` with the other slot allocators, with its cost and lowtide's counts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use std::ffi::OsString;

use crate::race;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub name: &'static str,
    pub slots: &'static str,
    /// The value of `LOWTIDE_FOLIOS`: the order of the largest folio.
    pub folio: usize,
}

#[derive(Debug)]
pub struct Runner<'a> {
    directory: &'a Path,
    program: PathBuf,
    stats: PathBuf,
    limit: u64,
    swap: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Ran {
    /// CPU seconds in user mode, of the compilers and of lowtide.
    pub user: f64,
    pub system: f64,
    /// Seconds: by its own report, or else its wall time.
    pub real: f64,
    /// MiB written to swap files.
    pub out_mib: f64,
    pub in_mib: f64,
    /// Folios stored in one run of slots, by order.
    pub whole: Vec<u64>,
    pub split: Vec<u64>,
    /// Count and seconds of waits for locks in all processes; `None`: this `lowtide` does not count
    /// them.
    pub waits: Option<(u64, f64)>,
}

/// Builds a `lowtide` with the other slot allocators.
const COMMAND: &str = "cargo build --release -p lowtide --features lab --target-dir target/lab";

impl<'a> Runner<'a> {
    /// Takes the `lowtide` with the other slot allocators, beside the one built with this program.
    /// `limit` and `swap` in bytes; too little swap, because only in full areas the search for runs
    /// matters.
    ///
    /// # Errors
    /// A line: it was not built.
    pub fn new(directory: &'a Path, limit: u64, swap: u64) -> Result<Runner<'a>, String> {
        let usual = race::lowtide_program()?;
        let target = usual.parent().and_then(Path::parent).ok_or("this program has no directory")?;
        let program = target.join("lab/release/lowtide");
        if !program.exists() {
            return Err(format!("there is no {}: `{COMMAND}` builds it", program.display()));
        }
        Ok(Runner { directory, program, stats: directory.join("stats.json"), limit, swap })
    }

    /// Builds the whole project with four jobs, and removes the result.
    ///
    /// # Errors
    /// A line: the build failed, or left no statistics.
    pub fn build(&self, variant: &Variant) -> Result<Ran, String> {
        let built = self.run(variant, &["make", "-j4", "all"].map(OsString::from))?;
        let cleaned = Command::new("make").arg("clean").current_dir(self.directory).stdout(Stdio::null()).status();
        cleaned.ok().filter(|status| status.success()).map(|_| built).ok_or_else(|| "`make clean` failed".to_owned())
    }

    /// Runs a command in the directory, without a pool.
    ///
    /// # Errors
    /// A line: it failed, or left no statistics.
    pub fn run(&self, variant: &Variant, words: &[OsString]) -> Result<Ran, String> {
        let directory = self.directory;
        let swap = format!("dir:{},size={}", directory.display(), self.swap);
        let mut command = Command::new(&self.program);
        command.args(["run", "--quiet", "--pool", "0", "--ram", &self.limit.to_string(), "--swap", &swap, "--stats"]);
        command.arg(&self.stats).arg("--").args(words).current_dir(directory);
        command.env("LOWTIDE_SLOTS", variant.slots).env("LOWTIDE_FOLIOS", variant.folio.to_string());
        let (before, began) = (cpu_seconds(), Instant::now());
        let output = command.stdin(Stdio::null()).output().map_err(|e| format!("lowtide can't be started: {e}"))?;
        let (wall, after) = (began.elapsed().as_secs_f64(), cpu_seconds());
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{}: {}: {}", variant.name, output.status, said.lines().last().unwrap_or("no message")));
        }
        let real = race::own_seconds(&said).unwrap_or(wall);
        Ok(Ran { user: after.0 - before.0, system: after.1 - before.1, real, ..self.counted()? })
    }

    fn counted(&self) -> Result<Ran, String> {
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", self.stats.display());
        let text = std::fs::read_to_string(&self.stats).map_err(|e| fail(&e))?;
        let stats: serde_json::Value = serde_json::from_str(&text).map_err(|e| fail(&e))?;
        let mib = |key: &str| {
            let areas = stats["areas"].as_array().into_iter().flatten();
            areas.filter_map(|area| area[key].as_f64()).sum::<f64>() / f64::from(1 << 20)
        };
        let orders = |kind: &str| -> Result<Vec<u64>, String> {
            let all = stats["folios"][kind].as_array().ok_or_else(|| fail(&"no folios"))?;
            Ok(all.iter().filter_map(serde_json::Value::as_u64).collect())
        };
        let work = &stats["work"];
        let waits = work["lock_waits"].as_u64().zip(work["lock_wait_seconds"].as_f64());
        let (out_mib, in_mib) = (mib("write_bytes"), mib("read_bytes"));
        Ok(Ran { out_mib, in_mib, whole: orders("whole")?, split: orders("split")?, waits, ..Ran::default() })
    }
}

/// User and system CPU seconds of all ended descendants.
fn cpu_seconds() -> (f64, f64) {
    // SAFETY: all zeros are a valid rusage, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}
