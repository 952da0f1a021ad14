//! The kernel's swap under a memory cgroup (version 1), on a file or on a zram device that exist
//! for the race only.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::fs::{FallocateFlags, fallocate};

use super::balance::Held;
use super::restore::{Made, PAGE_CLUSTER, Restorer, ZSWAP, own_name, swap_is_on, tool};

const GROUPS: &str = "/sys/fs/cgroup/memory";
const STAT: &str = "memory.stat";
const CONTROL: &str = "/sys/class/zram-control";
/// Longest end of a run's processes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Codecs for zswap, the first that the kernel has: lowtide's, and the next best.
const CODECS: [&str; 3] = ["lz4", "lzo-rle", "lzo"];
const STEP: u64 = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Swap {
    /// A file on the disk that lowtide uses too.
    File,
    /// Compressed RAM, which counts: the kernel's zram, and `--swap ram` of lowtide.
    Zram,
    /// The same file behind compressed RAM, which counts: the kernel's zswap, and what lowtide does by default.
    Zswap,
}

/// Accounting of the cache of files that a group reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// Excluded, as under lowtide, which limits the memory of programs.
    Free,
    /// Included: the program works on it.
    Counts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Events {
    /// Page faults that had to wait for a page.
    pub major_faults: u64,
    pub pages_in: u64,
}

/// The kernel's side of the race. The restorer takes it down.
#[derive(Debug)]
pub struct Kernel {
    group: PathBuf,
    zram: u32,
    file: PathBuf,
    /// The original setting.
    page_cluster: String,
    on: Option<Swap>,
    size: u64,
}

impl Kernel {
    /// Makes a group and a zram device, for up to `size` bytes of swap; swap files will be in
    /// `directory`.
    ///
    /// # Errors
    /// A line: what this machine or user can't do.
    pub fn new(restorer: &mut Restorer, directory: &Path, size: u64) -> Result<Kernel, String> {
        if !Path::new(GROUPS).join("memory.limit_in_bytes").exists() {
            return Err(format!("there are no memory cgroups of version 1 in {GROUPS}"));
        }
        if swap_is_on(None) {
            return Err("the machine swaps already, and would swap there".into());
        }
        let group = Path::new(GROUPS).join(own_name());
        restorer.will_make(&Made::Group(group.clone()))?;
        fs::create_dir(&group).map_err(|e| format!("{}: {e}", group.display()))?;
        let page_cluster = read(Path::new(PAGE_CLUSTER))?.trim().to_owned();
        restorer.will_make(&Made::PageCluster(page_cluster.clone()))?;
        let zram = zram(restorer, size)?;
        let file = directory.join(format!("{}.swap", own_name()));
        Ok(Kernel { group, zram, file, page_cluster, on: None, size })
    }

    /// Swaps to this, and to nothing else.
    ///
    /// # Errors
    /// A line: what the machine could not do.
    pub fn swap_to(&mut self, restorer: &mut Restorer, swap: Swap) -> Result<(), String> {
        if self.on == Some(swap) {
            return Ok(());
        }
        if let Some(before) = self.on.take() {
            tool(Command::new("swapoff").arg(self.path(before)))?;
        }
        if swap != Swap::Zram && !self.file.exists() {
            swap_file(restorer, &self.file, self.size)?;
        }
        set_zswap(restorer, swap == Swap::Zswap)?;
        // Neighbouring pages cost zram full time; on a disk they are almost free.
        write(Path::new(PAGE_CLUSTER), if swap == Swap::Zram { "0" } else { &self.page_cluster })?;
        let path = self.path(swap);
        tool(Command::new("mkswap").arg(&path))?;
        tool(Command::new("swapon").arg(&path))?;
        self.on = Some(swap);
        Ok(())
    }

    fn path(&self, swap: Swap) -> PathBuf {
        match swap {
            Swap::File | Swap::Zswap => self.file.clone(),
            Swap::Zram => PathBuf::from(format!("/dev/zram{}", self.zram)),
        }
    }

    /// The words in front of a command that put it into the group.
    pub fn words(&self) -> Vec<OsString> {
        let script = r#"echo $$ > "$0/cgroup.procs" && exec "$@""#;
        ["/bin/sh".into(), "-c".into(), script.into(), self.group.clone().into()].to_vec()
    }

    /// Frees the files' cache that earlier runs left in the group.
    ///
    /// # Errors
    /// A line.
    pub fn empty(&self) -> Result<(), String> {
        let began = Instant::now();
        let path = self.group.join("cgroup.procs");
        // Processes of an aborted run may still be dying.
        while !read(&path)?.trim().is_empty() {
            if began.elapsed() > PATIENCE {
                return Err(format!("{}: processes that do not end", path.display()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        write(&self.group.join("memory.force_empty"), "0")
    }

    /// Gives the group this many bytes beside its uncounted ones: so call it again and again during
    /// a run.
    ///
    /// # Errors
    /// A line.
    pub fn limit(&self, bytes: u64, cache: Cache) -> Result<(), String> {
        let path = self.group.join("memory.limit_in_bytes");
        let (before, now) = (number(&path)?, bytes + self.uncounted(cache)?);
        if before.abs_diff(now) <= STEP {
            return Ok(());
        }
        match fs::write(&path, now.to_string()) {
            // The pages to give up are in use; the next call tries again.
            Err(e) if e.kind() == ErrorKind::ResourceBusy => Ok(()),
            done => done.map_err(|e| format!("{}: {e}", path.display())),
        }
    }

    /// The group's bytes that a limit of lowtide excludes: the kernel's own, page tables above all,
    /// and maybe the cache of files. (Neither contains memory that is swapped like a program's own,
    /// such as shared memory.)
    ///
    /// Reading a group's statistics also makes the kernel count its pages, which it does by itself
    /// only every two seconds. It judges the age of pages by the last count: a group whose pages
    /// have changed faster seems to have none to swap out, and the kernel kills its program with
    /// gigabytes of swap free (Linux 6.18, seen with sort and redis-server).
    fn uncounted(&self, cache: Cache) -> Result<u64, String> {
        let structures = number(&self.group.join("memory.kmem.usage_in_bytes"))?;
        let stat = read(&self.group.join(STAT))?;
        let of = |name: &str| counted(&stat, name).ok_or_else(|| format!("{STAT}: no {name}"));
        let files = of("total_active_file ")? + of("total_inactive_file ")?;
        Ok(structures + if cache == Cache::Free { files } else { 0 })
    }

    /// Count of processes of the group that the kernel has killed for lack of memory.
    ///
    /// # Errors
    /// A line.
    pub fn kills(&self) -> Result<u64, String> {
        count(&self.group.join("memory.oom_control"), "oom_kill ")
    }

    /// Counted memory of the group and the compressed RAM behind it; a swap file holds no memory.
    ///
    /// # Errors
    /// A line.
    pub fn held(&self, cache: Cache) -> Result<Held, String> {
        let used = number(&self.group.join("memory.usage_in_bytes"))?;
        let (stored, pool) = if self.on == Some(Swap::Zswap) { zswap_held()? } else { self.zram_held()? };
        Ok(Held { resident: used.saturating_sub(self.uncounted(cache)?), stored, pool })
    }

    fn zram_held(&self) -> Result<(u64, u64), String> {
        let path = PathBuf::from(format!("/sys/block/zram{}/mm_stat", self.zram));
        // orig_data_size compr_data_size mem_used_total ...
        let text = read(&path)?;
        let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let &[stored, _, pool, ..] = fields.as_slice() else { return Err(format!("{}: {text}", path.display())) };
        Ok((stored, pool))
    }

    /// Events since the group was made. Nothing else swaps: the machine's counts are the group's.
    ///
    /// # Errors
    /// A line.
    pub fn events(&self) -> Result<Events, String> {
        Ok(Events {
            major_faults: count(&self.group.join(STAT), "total_pgmajfault ")?,
            pages_in: count(Path::new("/proc/vmstat"), "pswpin ")?,
        })
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The number behind a name in a file of lines.
fn count(path: &Path, name: &str) -> Result<u64, String> {
    counted(&read(path)?, name).ok_or_else(|| format!("{}: no {name}", path.display()))
}

fn counted(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

fn number(path: &Path) -> Result<u64, String> {
    read(path)?.trim().parse().map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, value: impl ToString) -> Result<(), String> {
    fs::write(path, value.to_string()).map_err(|e| format!("{}: {e}", path.display()))
}

/// Bytes in zswap, before and after compression. Nothing else swaps.
fn zswap_held() -> Result<(u64, u64), String> {
    let path = Path::new("/proc/meminfo");
    let text = read(path)?;
    let bytes = |name: &str| {
        let kib = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| format!("{}: no {name}", path.display()))
    };
    Ok((bytes("Zswapped:")?, bytes("Zswap:")?))
}

/// Turns zswap on, or off again, for pages swapped out from now on.
fn set_zswap(restorer: &mut Restorer, on: bool) -> Result<(), String> {
    if !Path::new(ZSWAP).exists() {
        return if on { Err(format!("no zswap: there is no {ZSWAP}")) } else { Ok(()) };
    }
    set_zswap_parameter(restorer, "enabled", if on { "Y" } else { "N" })?;
    if !on {
        return Ok(());
    }
    // lowtide's default codec; otherwise the machine's settings. The kernel reports missing codecs
    // only after zswap was first enabled.
    let mut missing = String::new();
    for codec in CODECS {
        match set_zswap_parameter(restorer, "compressor", codec) {
            Ok(()) => return Ok(()),
            Err(line) => missing = line,
        }
    }
    Err(missing)
}

fn set_zswap_parameter(restorer: &mut Restorer, name: &str, value: &str) -> Result<(), String> {
    let path = Path::new(ZSWAP).join(name);
    let before = read(&path)?.trim().to_owned();
    if before == value {
        return Ok(());
    }
    restorer.will_make(&Made::Zswap { name: name.to_owned(), before })?;
    write(&path, value)
}

fn swap_file(restorer: &mut Restorer, path: &Path, size: u64) -> Result<(), String> {
    restorer.will_make(&Made::SwapFile(path.to_owned()))?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|e| format!("{}: {e}", path.display()))?;
    fallocate(&file, FallocateFlags::empty(), 0, size).map_err(|e| format!("{}: {e}", path.display()))
}

fn zram(restorer: &mut Restorer, size: u64) -> Result<u32, String> {
    let control = PathBuf::from(format!("{CONTROL}/hot_add"));
    let number = number(&control).map_err(|e| format!("no zram: {e}"))?;
    let number = u32::try_from(number).map_err(|e| e.to_string())?;
    restorer.will_make(&Made::Zram(number))?;
    let device = PathBuf::from(format!("/sys/block/zram{number}"));
    // lowtide's default.
    write(&device.join("comp_algorithm"), "lz4")?;
    write(&device.join("disksize"), size)?;
    Ok(number)
}
