//! One build of the project under `lowtide run`, with what it took and what lowtide counted.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::Project;
use crate::race;

/// How slots are found in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// What the report and `--only` call it.
    pub name: &'static str,
    /// The value of `LOWTIDE_SLOTS`.
    pub slots: &'static str,
    /// The value of `LOWTIDE_FOLIOS`: the order of the largest folio.
    pub folio: usize,
}

/// Builds the project again and again.
#[derive(Debug)]
pub struct Builder<'a> {
    project: &'a Project,
    program: PathBuf,
    stats: PathBuf,
    limit: u64,
    swap: u64,
}

/// What one build took.
#[derive(Debug, Clone, Default)]
pub struct Built {
    /// CPU seconds in user mode, of the compilers and of lowtide.
    pub user: f64,
    /// CPU seconds in the kernel.
    pub system: f64,
    /// Wall time in seconds.
    pub real: f64,
    /// MiB written to swap files.
    pub out_mib: f64,
    /// MiB read from them.
    pub in_mib: f64,
    /// Folios that got slots together, by order.
    pub whole: Vec<u64>,
    /// Folios that were split, by the order that was asked for.
    pub split: Vec<u64>,
    /// Waits for locks, and how long they took in seconds, all processes together; `None`: that `lowtide` does not count them.
    pub waits: Option<(u64, f64)>,
}

/// The command that builds a `lowtide` with the other slot allocators.
const COMMAND: &str = "cargo build --release -p lowtide --features lab --target-dir target/lab";

impl<'a> Builder<'a> {
    /// Takes the `lowtide` with the other slot allocators, beside the one that was built with this program. `limit` and `swap`
    /// in bytes: so little swap that areas get full, as only there it matters how runs of slots are found.
    ///
    /// # Errors
    /// A line: it was not built.
    pub fn new(project: &'a Project, limit: u64, swap: u64) -> Result<Builder<'a>, String> {
        let usual = race::lowtide_program()?;
        let target = usual.parent().and_then(Path::parent).ok_or("this program has no directory")?;
        let program = target.join("lab/release/lowtide");
        if !program.exists() {
            return Err(format!("there is no {}: `{COMMAND}` builds it", program.display()));
        }
        Ok(Builder { project, program, stats: project.directory().join("stats.json"), limit, swap })
    }

    /// Builds the whole project with four jobs, and takes it away again.
    ///
    /// # Errors
    /// A line: the build failed, or left no statistics.
    pub fn build(&self, variant: &Variant) -> Result<Built, String> {
        let directory = self.project.directory();
        let swap = format!("dir:{},size={}", directory.display(), self.swap);
        let mut command = Command::new(&self.program);
        command.args(["run", "--quiet", "--pool", "0", "--ram", &self.limit.to_string(), "--swap", &swap, "--stats"]);
        command.arg(&self.stats).args(["--", "make", "-j4", "all"]).current_dir(directory);
        command.env("LOWTIDE_SLOTS", variant.slots).env("LOWTIDE_FOLIOS", variant.folio.to_string());
        let (before, began) = (cpu_seconds(), Instant::now());
        let output = command.stdin(Stdio::null()).output().map_err(|e| format!("lowtide can't be started: {e}"))?;
        let (real, after) = (began.elapsed().as_secs_f64(), cpu_seconds());
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {}: {}", variant.name, output.status, said.lines().last().unwrap_or("no message")));
        }
        let built = Built { user: after.0 - before.0, system: after.1 - before.1, real, ..self.counted()? };
        let cleaned = Command::new("make").arg("clean").current_dir(directory).stdout(Stdio::null()).status();
        cleaned.ok().filter(|status| status.success()).map(|_| built).ok_or_else(|| "`make clean` failed".to_owned())
    }

    fn counted(&self) -> Result<Built, String> {
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
        Ok(Built { out_mib, in_mib, whole: orders("whole")?, split: orders("split")?, waits, ..Built::default() })
    }
}

/// CPU seconds of all children that have ended, theirs included: user and system.
fn cpu_seconds() -> (f64, f64) {
    // SAFETY: all zeros are a rusage, and the call writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}
