//! A separate process undoes the race's changes of the machine when the experiment ends, however it
//! ends: it waits for the closing of a pipe. A record file lists each change before it is made, so
//! the next race undoes what a killed one has left.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

pub const NAME: &str = "race-restore";
/// Every name of a file, group or record of the race begins with this and goes on with the
/// experiment's process id.
const PREFIX: &str = "lowtide-lab-race.";
/// Records are in memory: after a reboot only files are left to undo.
const RECORDS: &str = "/run";
/// log2 of the pages that the kernel reads from swap at once.
pub const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
pub const ZSWAP: &str = "/sys/module/zswap/parameters";
const ZSWAP_PARAMETERS: [&str; 2] = ["compressor", "enabled"];
const CONTROL: &str = "/sys/class/zram-control";
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, PartialEq)]
pub enum Made {
    /// A swap file, on or off.
    SwapFile(PathBuf),
    /// A zram device, used for swap or not.
    Zram(u32),
    Group(PathBuf),
    Directory(PathBuf),
    /// `vm.page-cluster` with its earlier value.
    PageCluster(String),
    /// A zswap parameter with its earlier value.
    Zswap {
        name: String,
        before: String,
    },
}

impl Made {
    fn line(&self) -> String {
        match self {
            Made::SwapFile(path) => format!("swap {}\n", path.display()),
            Made::Zram(number) => format!("zram {number}\n"),
            Made::Group(path) => format!("group {}\n", path.display()),
            Made::Directory(path) => format!("directory {}\n", path.display()),
            Made::PageCluster(before) => format!("page-cluster {before}\n"),
            Made::Zswap { name, before } => format!("zswap {name} {before}\n"),
        }
    }

    /// Reads a line; accepts only names of the race's own.
    fn parse(line: &str) -> Option<Made> {
        let (kind, what) = line.split_once(' ')?;
        let own = || Path::new(what).file_name()?.to_str()?.starts_with(PREFIX).then(|| PathBuf::from(what));
        match kind {
            "swap" => own().map(Made::SwapFile),
            "zram" => what.parse().ok().map(Made::Zram),
            "group" => own().map(Made::Group),
            "directory" => own().map(Made::Directory),
            "zswap" => what
                .split_once(' ')
                .filter(|(name, _)| ZSWAP_PARAMETERS.contains(name))
                .map(|(name, before)| Made::Zswap { name: name.to_owned(), before: before.to_owned() }),
            "page-cluster" => what.parse::<u32>().ok().map(|before| Made::PageCluster(before.to_string())),
            _ => None,
        }
    }

    fn kill(&self) {
        let Made::Group(path) = self else { return };
        let procs = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Undoes it; idempotent.
    fn undo(&self) -> Result<(), String> {
        match self {
            Made::SwapFile(path) => {
                swap_off(path)?;
                gone(fs::remove_file(path)).map_err(|e| format!("{}: {e}", path.display()))
            }
            Made::Zram(number) => {
                let device = PathBuf::from(format!("/dev/zram{number}"));
                if !Path::new(&format!("/sys/block/zram{number}")).exists() {
                    return Ok(());
                }
                swap_off(&device)?;
                let write = |path: String, text: String| fs::write(&path, text).map_err(|e| format!("{path}: {e}"));
                write(format!("/sys/block/zram{number}/reset"), "1".into())?;
                write(format!("{CONTROL}/hot_remove"), number.to_string())
            }
            Made::Directory(path) => gone(fs::remove_dir_all(path)).map_err(|e| format!("{}: {e}", path.display())),
            Made::Zswap { name, before } => {
                let path = Path::new(ZSWAP).join(name);
                fs::write(&path, before).map_err(|e| format!("{}: {e}", path.display()))
            }
            Made::PageCluster(before) => fs::write(PAGE_CLUSTER, before).map_err(|e| format!("{PAGE_CLUSTER}: {e}")),
            Made::Group(path) => {
                self.kill();
                gone(fs::remove_dir(path)).map_err(|e| format!("{}: {e}", path.display()))
            }
        }
    }
}

/// A missing file is no error.
fn gone(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether the kernel swaps to `path`, or, for `None`, to anything.
pub fn swap_is_on(path: Option<&Path>) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut used = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    used.any(|name| path.is_none_or(|path| Path::new(name) == path))
}

fn swap_off(path: &Path) -> Result<(), String> {
    if !swap_is_on(Some(path)) {
        return Ok(());
    }
    tool(Command::new("swapoff").arg(path))
}

pub fn tool(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().map_err(|e| format!("{name} can't be started: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(format!("{name} failed: {}", said.lines().next().unwrap_or("it does not say why")))
}

pub fn own_name() -> String {
    format!("{PREFIX}{}", std::process::id())
}

/// Undoes all reported changes when dropped, and when this process dies.
#[derive(Debug)]
pub struct Restorer {
    record: File,
    process: Child,
}

impl Restorer {
    /// Starts the undoing process, after undoing what earlier races left.
    ///
    /// # Errors
    /// A line: what the machine could not do, or that another race runs.
    pub fn new() -> Result<Restorer, String> {
        undo_leftovers()?;
        let path = Path::new(RECORDS).join(own_name());
        let record = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
        let record = record.map_err(|e| format!("{}: {e}", path.display()))?;
        let own = std::env::current_exe().map_err(|e| format!("can't find this program: {e}"))?;
        // A group of its own: signals from the terminal end the experiment, not this.
        let process =
            Command::new(own).arg(NAME).arg(&path).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0).spawn();
        match process {
            Ok(process) => Ok(Restorer { record, process }),
            Err(e) => {
                let _ = fs::remove_file(&path);
                Err(format!("can't start a process that cleans up: {e}"))
            }
        }
    }

    /// Records a change before it is made. Undoing goes in the opposite order.
    ///
    /// # Errors
    /// A line; nothing must be made then.
    pub fn will_make(&mut self, made: &Made) -> Result<(), String> {
        self.record.write_all(made.line().as_bytes()).map_err(|e| format!("{RECORDS}: {e}"))
    }

    /// Undoes everything, now.
    ///
    /// # Errors
    /// A line: not everything could be undone; standard error says what.
    pub fn restore(mut self) -> Result<(), String> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), String> {
        drop(self.process.stdin.take());
        match self.process.wait() {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("the machine is not as it was before: {other:?}")),
        }
    }
}

impl Drop for Restorer {
    fn drop(&mut self) {
        // After `restore` this only asks again for the status.
        let _ = self.finish();
    }
}

pub fn main(args: &[String]) -> ExitCode {
    let [record] = args else {
        eprintln!("lowtide-lab: {NAME} is started by the race only");
        return ExitCode::from(2);
    };
    let undone = File::open(record).map_err(|e| format!("{record}: {e}")).and_then(|file| {
        flock(&file, FlockOperation::LockExclusive).map_err(|e| format!("{record}: {e}"))?;
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        undo(Path::new(record))
    });
    match undone {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("lowtide-lab: race: {line}; `lowtide-lab race` tries it again");
            ExitCode::FAILURE
        }
    }
}

/// Undoes a record's changes, the last first, and then removes the record.
fn undo(record: &Path) -> Result<(), String> {
    let text = fs::read_to_string(record).map_err(|e| format!("{}: {e}", record.display()))?;
    let made: Vec<Made> = text.lines().filter_map(Made::parse).collect();
    // The group's live processes would compete with swapoff for pages.
    made.iter().for_each(Made::kill);
    let mut left: Vec<&Made> = made.iter().rev().collect();
    let began = Instant::now();
    loop {
        // A failure does not stop the others, and may be due to these.
        let mut failed = Vec::new();
        left.retain(|made| made.undo().map_err(|why| failed.push(why)).is_err());
        if failed.is_empty() {
            return fs::remove_file(record).map_err(|e| e.to_string());
        }
        if began.elapsed() > PATIENCE {
            return Err(failed.join("; "));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn undo_leftovers() -> Result<(), String> {
    let files = fs::read_dir(RECORDS).map_err(|e| format!("{RECORDS}: {e}"))?;
    for path in files.filter_map(|file| file.ok().map(|file| file.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(pid) = name.strip_prefix(PREFIX) else { continue };
        let Ok(file) = File::open(&path) else { continue };
        let cleaning = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
        if cleaning {
            return Err(format!("another race is running, or is being cleaned up (process {pid})"));
        }
        undo(&path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_map_both_ways_and_foreign_names_are_not_touched() {
        let own = |dir: &str| Path::new(dir).join(own_name());
        let made = [
            Made::SwapFile(own("/var/tmp")),
            Made::Zram(3),
            Made::Group(own("/sys/fs/cgroup/memory")),
            Made::Directory(own("/tmp")),
            Made::PageCluster("3".to_owned()),
            Made::Zswap { name: "enabled".to_owned(), before: "N".to_owned() },
        ];
        for made in made {
            assert_eq!(Made::parse(made.line().trim_end()), Some(made));
        }
        for line in [
            "swap /swapfile",
            "group /sys/fs/cgroup/memory/system",
            "zram x",
            "directory /tmp",
            "page-cluster x",
            "zswap ../../kernel/parameters/panic 1",
            "file /tmp/lowtide-lab-race.1",
        ] {
            assert_eq!(Made::parse(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_undone_already_is_no_error() {
        let missing = std::env::temp_dir().join(own_name()).join(own_name());
        for made in
            [Made::SwapFile(missing.clone()), Made::Directory(missing.clone()), Made::Group(missing), Made::Zram(u32::MAX)]
        {
            assert_eq!(made.undo(), Ok(()));
        }
    }
}
