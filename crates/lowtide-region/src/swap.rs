//! Where pages go that don't stay in RAM.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use lowtide_core::device::{DeviceName, is_rotational};
use lowtide_core::store::FileConfig;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::Error;
use crate::size;

/// Names another directory for [`Swap::Auto`].
const DIR_VARIABLE: &str = "LOWTIDE_DIR";
const DEFAULT_DIR: &str = "/var/tmp";
/// The smallest swap file: one cluster.
const LEAST: u64 = 2 << 20;

/// Where pages go that are not in memory. Compressed RAM, which is a part of the RAM limit, always comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Swap {
    /// An unnamed file in the directory `$LOWTIDE_DIR`, else in `/var/tmp`, that grows up to half of what is free there. Where
    /// `/var/tmp` is in RAM, or no such file can be made there, compressed RAM only.
    #[default]
    Auto,
    /// Compressed RAM only. What does not fit there stays in memory, over the limit.
    Ram,
    /// An unnamed file in this directory.
    Dir {
        /// The directory.
        dir: PathBuf,
        /// Most bytes of the file. None: half of what is free there when it is made.
        size: Option<u64>,
    },
}

/// `auto`, `ram`, or `dir:DIR[,size=8G]`, as for `lowtide run --swap`.
impl FromStr for Swap {
    type Err = Error;

    fn from_str(text: &str) -> Result<Swap, Error> {
        let bad = |why: &str| Error::Swap(format!("`{text}`: {why}"));
        match text {
            "auto" => return Ok(Swap::Auto),
            "ram" => return Ok(Swap::Ram),
            _ => {}
        }
        let Some(rest) = text.strip_prefix("dir:") else { return Err(bad("write auto, ram or dir:DIR[,size=8G]")) };
        let (dir, option) = rest.split_once(',').map_or((rest, None), |(dir, option)| (dir, Some(option)));
        if dir.is_empty() {
            return Err(bad("names no directory: write dir:DIR[,size=8G]"));
        }
        let size = match option {
            None => None,
            Some(option) => {
                let text = option.strip_prefix("size=").ok_or_else(|| bad("the only option is size="))?;
                // A share of what? So there is none.
                if text.ends_with('%') {
                    return Err(bad("a size is in bytes here, like 8G"));
                }
                Some(size::parse(text, 0).map_err(|why| bad(&why))?)
            }
        };
        Ok(Swap::Dir { dir: dir.into(), size })
    }
}

impl Swap {
    /// Makes the file, if there is to be one.
    pub(crate) fn open(&self) -> Result<Option<FileConfig>, Error> {
        match self {
            Swap::Ram => Ok(None),
            Swap::Dir { dir, size } => {
                open_in(dir, *size).map(Some).map_err(|why| Error::Swap(format!("dir:{}: {why}", dir.display())))
            }
            Swap::Auto => match std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()) {
                Some(dir) => open_in(Path::new(&dir), None)
                    .map(Some)
                    .map_err(|why| Error::Swap(format!("auto: {DIR_VARIABLE}={}: {why}", Path::new(&dir).display()))),
                // What nobody asked for need not be there.
                None if is_in_ram(Path::new(DEFAULT_DIR)) => Ok(None),
                None => Ok(open_in(Path::new(DEFAULT_DIR), None).ok()),
            },
        }
    }
}

fn open_in(dir: &Path, size: Option<u64>) -> Result<FileConfig, String> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| match errno {
        Errno::OPNOTSUPP | Errno::ISDIR => {
            "its file system has no unnamed files (O_TMPFILE): name a directory on ext4, xfs or btrfs".to_owned()
        }
        errno => format!("no file can be made there ({errno}): name another directory"),
    })?;
    let space = rustix::fs::fstatvfs(&fd).map_err(|errno| format!("it can't be looked at ({errno})"))?;
    let bytes = size.unwrap_or(space.f_bavail.saturating_mul(space.f_frsize) / 2);
    if bytes < LEAST {
        return Err(match size {
            Some(_) => format!("a swap file of {} is too small: at least {} is needed", size::show(bytes), size::show(LEAST)),
            None => "its file system is full: free some space, or name another directory".to_owned(),
        });
    }
    // Known as long as the process: messages name it.
    let path = Box::leak(dir.as_os_str().as_encoded_bytes().to_vec().into_boxed_slice());
    let name = DeviceName { kind: "dir:", path, number: 0 };
    // What a group has no use for any more goes back to the file system: the file outlives it.
    let rotating = is_rotational(&fd) == Some(true);
    Ok(FileConfig { name, discard: true, rotating, ..FileConfig::new(fd, bytes) })
}

fn is_in_ram(dir: &Path) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    rustix::fs::statfs(dir).is_ok_and(|fs| [TMPFS, RAMFS].contains(&(fs.f_type as u64 & 0xffff_ffff)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_understood_or_refused_in_a_line() {
        let dir = |dir: &str, size| Ok(Swap::Dir { dir: dir.into(), size });
        assert_eq!("auto".parse(), Ok(Swap::Auto));
        assert_eq!("ram".parse(), Ok(Swap::Ram));
        assert_eq!("dir:/tmp".parse(), dir("/tmp", None));
        assert_eq!("dir:/tmp,size=8M".parse(), dir("/tmp", Some(8 << 20)));
        for text in ["", "disk", "dir:", "dir:,size=8M", "dir:/tmp,8M", "dir:/tmp,size=x", "dir:/tmp,size=5%"] {
            let line = text.parse::<Swap>().unwrap_err().to_string();
            assert!(line.contains(text) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_place_that_can_t_be_used_is_refused() {
        let open = |text: &str| text.parse::<Swap>().unwrap().open().map(|file| file.is_some());
        assert_eq!(open("ram"), Ok(false));
        assert!(open("dir:/nonexistent").unwrap_err().to_string().contains("dir:/nonexistent"));
        assert!(open("dir:/tmp,size=4096").unwrap_err().to_string().contains("too small"));
    }
}
