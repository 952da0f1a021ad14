//! The kernel's swap under a memory cgroup (version 1), on a file or on a zram device that exist for the race only.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use rustix::fs::{FallocateFlags, fallocate};

use super::restore::{Made, Restorer, own_name, swap_is_on, tool};

const GROUPS: &str = "/sys/fs/cgroup/memory";
const CONTROL: &str = "/sys/class/zram-control";

/// What the kernel swaps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Swap {
    /// A file on the disk that lowtide uses too.
    File,
    /// Compressed RAM; its memory counts against the limit.
    Zram,
}

/// The kernel's side of the race. Gone when this is dropped.
#[derive(Debug)]
pub struct Kernel {
    group: PathBuf,
    restorer: Restorer,
}

impl Kernel {
    /// Turns swap of `size` bytes on and makes a group. `limit` bytes are for the group, and `compressed` of them for zram.
    ///
    /// # Errors
    /// A line: what this machine or user can't do. Nothing is left then.
    pub fn new(swap: Swap, dir: &Path, size: u64, limit: u64, compressed: u64) -> Result<Kernel, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("race: it takes root to turn the kernel's swap on".into());
        }
        if !Path::new(GROUPS).join("memory.limit_in_bytes").exists() {
            return Err(format!("race: there are no memory cgroups of version 1 in {GROUPS}"));
        }
        let mut restorer = Restorer::new().map_err(|e| format!("race: {e}"))?;
        if swap_is_on(None) {
            return Err("race: the machine swaps already, and would swap there".into());
        }
        let group = Path::new(GROUPS).join(own_name());
        let made = match swap {
            Swap::File => swap_file(&mut restorer, dir, size),
            Swap::Zram => zram(&mut restorer, size, compressed),
        };
        let of_group = if swap == Swap::Zram { limit - compressed } else { limit };
        made.and_then(|()| {
            restorer.will_make(&Made::Group(group.clone()))?;
            fs::create_dir(&group).map_err(|e| format!("{}: {e}", group.display()))?;
            write(&group.join("memory.limit_in_bytes"), of_group)
        })
        .map_err(|e| format!("race: {e}"))?;
        Ok(Kernel { group, restorer })
    }

    /// The words in front of a command that put it into the group.
    pub fn command(&self) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#]).arg(&self.group);
        command
    }

    /// Most bytes that the group has held since the last call.
    ///
    /// # Errors
    /// A line.
    pub fn take_peak(&self) -> Result<u64, String> {
        let path = self.group.join("memory.max_usage_in_bytes");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        write(&path, 0)?;
        text.trim().parse().map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Turns it all off.
    ///
    /// # Errors
    /// A line: something could not be undone.
    pub fn end(self) -> Result<(), String> {
        self.restorer.restore()
    }
}

fn write(path: &Path, value: impl ToString) -> Result<(), String> {
    fs::write(path, value.to_string()).map_err(|e| format!("{}: {e}", path.display()))
}

fn swap_file(restorer: &mut Restorer, dir: &Path, size: u64) -> Result<(), String> {
    let path = dir.join(format!("{}.swap", own_name()));
    restorer.will_make(&Made::SwapFile(path.clone()))?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(|e| format!("{}: {e}", path.display()))?;
    fallocate(&file, FallocateFlags::empty(), 0, size).map_err(|e| format!("{}: {e}", path.display()))?;
    swap_on(&path)
}

fn zram(restorer: &mut Restorer, size: u64, compressed: u64) -> Result<(), String> {
    let number = fs::read_to_string(format!("{CONTROL}/hot_add")).map_err(|e| format!("no zram: {CONTROL}/hot_add: {e}"))?;
    let number: u32 = number.trim().parse().map_err(|e| format!("{CONTROL}/hot_add: {e}"))?;
    restorer.will_make(&Made::Zram(number))?;
    let device = PathBuf::from(format!("/sys/block/zram{number}"));
    // lowtide's own default.
    write(&device.join("comp_algorithm"), "lz4")?;
    write(&device.join("disksize"), size)?;
    write(&device.join("mem_limit"), compressed)?;
    swap_on(Path::new(&format!("/dev/zram{number}")))
}

fn swap_on(path: &Path) -> Result<(), String> {
    tool(Command::new("mkswap").arg(path))?;
    tool(Command::new("swapon").arg(path))
}
