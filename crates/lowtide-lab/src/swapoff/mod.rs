//! A real `lowtide swapoff` of a swap file of a real `lowtide run`, whose program sleeps meanwhile:
//! all CPU time is lowtide's, of its threads in the program, of `lowtide run` and of the command.

mod compile;
mod cpu;
mod program;

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Instant;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::Value;

use crate::race::lowtide_program;
use compile::Build;
pub use cpu::Cpu;

const RAM: &str = "64M";
/// Keeps pages that move between areas out of the pool.
const POOL: &str = "1M";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// Another swap area on the same disk.
    Area,
    /// The pool: the limit is raised before to twice the program's memory.
    Pool,
}

#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub bytes: u64,
    pub to: To,
    pub building: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Taken {
    /// Used bytes of the area.
    pub bytes: u64,
    /// From the start of the command to its end.
    pub seconds: f64,
    /// All of lowtide's.
    pub cpu: Cpu,
    /// Reads of the area.
    pub reads: u64,
    /// Bytes of those.
    pub read_bytes: u64,
    /// Files compiled meanwhile.
    pub files: u64,
}

/// The program, if this process is meant to be it.
pub fn helper() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    (args.first()? == program::NAME).then(|| program::main(&args[1..]))
}

/// Measures one swapoff. `directory`: for the swap files and the build.
///
/// # Errors
/// A line: something can't be started or failed; the program found other bytes in its memory.
pub fn measure(setup: Setup, directory: &Path) -> Result<Taken, String> {
    let work = Work::new(directory)?;
    let run = Run::start(setup, &work)?;
    let before = run.stat()?;
    let pid = before.pointer("/processes/0/pid").and_then(Value::as_u64).ok_or("the run has no process")? as u32;
    let used = number(&before, "/areas/0/used")?;
    if used < setup.bytes / 2 {
        return Err(format!("only {used} bytes of {} are out", setup.bytes));
    }
    if setup.to == To::Pool {
        run.lowtide(&["limit", &run.pid(), &(setup.bytes * 2).to_string()])?;
    }
    let build = setup.building.then(|| Build::start(&work.0)).transpose()?;
    let ours = |run: &Run| cpu::of_threads(pid, "lowtide-") + cpu::of_process(run.child.id());
    let (cpu, began) = (ours(&run), Instant::now());
    let command = run.lowtide(&["swapoff", &run.pid(), &work.spec()])?;
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), ours(&run) - cpu + command);
    let files = build.map_or(Ok(0), Build::end)?;
    let after = run.stat()?;
    // Areas that are off follow those that are on.
    let areas = after["areas"].as_array().ok_or("the run has no areas")?;
    let off = areas.iter().find(|area| area["state"] == "off").ok_or("the area is not off")?;
    let count = |key: &str| Ok::<u64, String>(number(off, &format!("/{key}"))? - number(&before, &format!("/areas/0/{key}"))?);
    let taken = Taken { bytes: used, seconds, cpu, reads: count("reads")?, read_bytes: count("read_bytes")?, files };
    run.finish()?;
    Ok(taken)
}

fn number(value: &Value, path: &str) -> Result<u64, String> {
    value.pointer(path).and_then(Value::as_u64).ok_or_else(|| format!("lowtide's statistics have no {path}"))
}

/// Drop removes the directory and its content.
struct Work(PathBuf);

impl Work {
    fn new(directory: &Path) -> Result<Work, String> {
        let path = directory.join(format!("lowtide-lab-swapoff-{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Work(path))
    }

    fn spec(&self) -> String {
        format!("file:{}", self.0.join("swap").display())
    }

    /// Makes the file of the area.
    fn file(&self, bytes: u64) -> Result<(), String> {
        let path = self.0.join("swap");
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|file| file.set_len(bytes)).map_err(|e| format!("{}: {e}", path.display()))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `lowtide run` of the program; drop kills it.
struct Run {
    lowtide: PathBuf,
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Run {
    /// Returns when the program's memory is filled.
    fn start(setup: Setup, work: &Work) -> Result<Run, String> {
        let size = setup.bytes * 2;
        work.file(size)?;
        let lowtide = lowtide_program()?;
        let own = std::env::current_exe().map_err(|e| format!("can't find this program: {e}"))?;
        let mut command = Command::new(&lowtide);
        command.args(["run", "--quiet", "--ram", RAM, "--swap", &format!("{},prio=2", work.spec())]);
        if setup.to == To::Area {
            command.args(["--pool", POOL]);
            command.args(["--swap", &format!("dir:{},size={size},prio=1", work.0.display())]);
        }
        command.arg("--").arg(own).args([program::NAME, &setup.bytes.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|e| format!("lowtide: {e}"))?;
        let said = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut run = Run { lowtide, child, said };
        run.hear(program::FILLED)?;
        Ok(run)
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn hear(&mut self, expected: &str) -> Result<(), String> {
        let mut line = String::new();
        self.said.read_line(&mut line).map_err(|e| e.to_string())?;
        if line.trim_end() == expected { Ok(()) } else { Err(format!("the program says {line:?}, not {expected}")) }
    }

    /// Runs a command of lowtide, which must succeed; returns its CPU time.
    fn lowtide(&self, words: &[&str]) -> Result<Cpu, String> {
        let mut child = Command::new(&self.lowtide)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("lowtide: {e}"))?;
        let mut error = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            stderr.read_to_string(&mut error).map_err(|e| e.to_string())?;
        }
        // The kernel reports its CPU time until it is reaped.
        let id = Pid::from_child(&child);
        waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).map_err(|e| e.to_string())?;
        let cpu = cpu::of_process(child.id());
        let status = child.wait().map_err(|e| e.to_string())?;
        if status.success() { Ok(cpu) } else { Err(format!("lowtide {}: {}", words.join(" "), error.trim_end())) }
    }

    fn stat(&self) -> Result<Value, String> {
        let output = Command::new(&self.lowtide).args(["stat", &self.pid(), "--json"]).output();
        let output = output.map_err(|e| format!("lowtide: {e}"))?;
        serde_json::from_slice(&output.stdout).map_err(|e| format!("lowtide stat: {e}"))
    }

    /// Lets the program check its memory and end.
    fn finish(mut self) -> Result<(), String> {
        drop(self.child.stdin.take());
        self.hear(program::RIGHT)?;
        let status = self.child.wait().map_err(|e| e.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the run ended with {status}")) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A reaped child gets no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
