//! lowtide's side of the race.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::Swap;

#[derive(Debug)]
pub struct Lowtide {
    program: PathBuf,
    stats: PathBuf,
    directory: PathBuf,
    is_plain: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Most memory in bytes, lowtide's own included.
    pub peak: u64,
    pub faults: u64,
    /// Of those, faults on staged pages.
    pub staged: u64,
    pub pages_in: u64,
}

/// The program built together with this one.
///
/// # Errors
/// A line: it was not built.
pub fn program() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| format!("can't find this program: {e}"))?;
    let program = own.with_file_name("lowtide");
    if program.exists() { Ok(program) } else { Err(format!("there is no {}: build lowtide first", program.display())) }
}

impl Lowtide {
    /// Takes the [`program`]. `work` is for its statistics, `disk` for its swap file. `is_plain`:
    /// with lowtide's default options, whatever the kernel has.
    ///
    /// # Errors
    /// A line: it was not built.
    pub fn new(work: &Path, disk: &Path, is_plain: bool) -> Result<Lowtide, String> {
        Ok(Lowtide { program: program()?, stats: work.join("stats.json"), directory: disk.to_owned(), is_plain })
    }

    /// The words in front of a command that run it in `limit` bytes, with a swap file of `size`
    /// bytes if `swap` has one.
    pub fn words(&self, limit: u64, swap: Swap, size: u64) -> Vec<OsString> {
        let swap = match swap {
            Swap::Zram => "ram".to_owned(),
            Swap::File | Swap::Zswap => format!("dir:{},size={size}", self.directory.display()),
        };
        let limit = limit.to_string();
        let mut words: Vec<OsString> = vec![self.program.clone().into()];
        words.extend(["run", "--quiet", "--ram", &limit].map(OsString::from));
        if !self.is_plain {
            words.extend(["--swap", &swap].map(OsString::from));
        }
        words.extend(["--stats".into(), self.stats.clone().into(), "--".into()]);
        words
    }

    /// The last run's counts.
    ///
    /// # Errors
    /// A line: it left no statistics.
    pub fn take_counts(&self) -> Result<Counts, String> {
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", self.stats.display());
        let text = std::fs::read_to_string(&self.stats).map_err(|e| fail(&e))?;
        // The next run must not find them.
        std::fs::remove_file(&self.stats).map_err(|e| fail(&e))?;
        let stats: serde_json::Value = serde_json::from_str(&text).map_err(|e| fail(&e))?;
        let count = |path: &str| stats.pointer(path).and_then(|n| n.as_u64()).ok_or_else(|| fail(&format!("no {path}")));
        Ok(Counts {
            peak: count("/ram_peak")?,
            faults: count("/faults/total")?,
            staged: count("/faults/staged")?,
            pages_in: count("/pages/loaded")?,
        })
    }
}
