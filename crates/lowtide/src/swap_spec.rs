//! `--swap SPEC`: what was asked for, and the directory behind it.

use crate::error::Failure;
use crate::size;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Where pages go that don't stay in RAM.
#[derive(Debug, PartialEq, Eq)]
pub enum Swap {
    /// Compressed RAM only.
    Ram,
    /// Compressed RAM, then an unnamed file.
    File {
        /// Directory of the file, absolute.
        dir: PathBuf,
        /// Most bytes of file.
        size: u64,
        /// Priority: kept for the statistics, there is one area.
        prio: i32,
    },
}

/// One SPEC as written.
#[derive(Debug, PartialEq, Eq)]
enum Spec {
    Auto,
    Ram,
    Dir { dir: PathBuf, size: Option<u64>, prio: i32 },
}

/// Smallest swap file that makes sense.
const LEAST: u64 = 1 << 20;

/// Resolves the SPECs of a command line. The second value is a warning: `auto` found no place for a file.
pub fn resolve(specs: &[String], ram_usable: u64) -> Result<(Swap, Option<String>), Failure> {
    let specs = specs.iter().map(|text| parse(text, ram_usable)).collect::<Result<Vec<_>, _>>()?;
    if specs.iter().filter(|spec| **spec != Spec::Ram).count() > 1 {
        return Err(Failure::not_built("more than one --swap area that is a file"));
    }
    match specs.into_iter().find(|spec| *spec != Spec::Ram).unwrap_or(Spec::Ram) {
        Spec::Ram => Ok((Swap::Ram, None)),
        Spec::Dir { dir, size, prio } => {
            let (dir, free) = usable_dir(&dir).map_err(|why| Failure::usage(format!("--swap dir:{}: {why}", dir.display())))?;
            let warning = size.filter(|&size| size > free).map(|size| {
                format!("--swap: {} has only {} free, less than size={}", dir.display(), size::show(free), size::show(size))
            });
            Ok((Swap::File { dir, size: size.unwrap_or(free / 2), prio }, warning))
        }
        Spec::Auto => auto(),
    }
}

/// `auto`: `$LOWTIDE_DIR`, else `/var/tmp`; up to half of what is free there.
fn auto() -> Result<(Swap, Option<String>), Failure> {
    let chosen = std::env::var_os("LOWTIDE_DIR").filter(|dir| !dir.is_empty());
    match usable_dir(&auto_dir()) {
        Ok((dir, free)) => Ok((Swap::File { dir, size: free / 2, prio: 0 }, None)),
        Err(why) if chosen.is_some() => Err(Failure::usage(format!("LOWTIDE_DIR={}: {why}", auto_dir().display()))),
        Err(why) => {
            let warning = format!("no swap file in /var/tmp ({why}): compressed RAM only; LOWTIDE_DIR names another directory");
            Ok((Swap::Ram, Some(warning)))
        }
    }
}

/// The directory that `auto` uses.
pub fn auto_dir() -> PathBuf {
    std::env::var_os("LOWTIDE_DIR").filter(|dir| !dir.is_empty()).map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// Whether an unnamed swap file can be made in `dir`: its absolute path and the free bytes there, or what is wrong.
pub fn usable_dir(dir: &Path) -> Result<(PathBuf, u64), String> {
    let dir = dir.canonicalize().map_err(|error| reason(&error))?;
    if !dir.is_dir() {
        return Err("not a directory".to_owned());
    }
    let kind = rustix::fs::statfs(&dir).map_err(|error| reason(&error.into()))?;
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    if [TMPFS, RAMFS].contains(&(kind.f_type as u64 & 0xffff_ffff)) {
        return Err("it is in RAM (tmpfs), so swapping to it saves nothing: name a directory on a disk".to_owned());
    }
    match rustix::fs::openat(CWD, &dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR) {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            return Err("its file system has no unnamed files (O_TMPFILE): name a directory on ext4, xfs or btrfs".to_owned());
        }
        Err(error) => return Err(format!("no file can be made there: {}", reason(&error.into()))),
    }
    if dir.as_os_str().len() >= 1024 {
        return Err("the path is too long".to_owned());
    }
    let space = rustix::fs::statvfs(&dir).map_err(|error| reason(&error.into()))?;
    Ok((dir, space.f_bavail.saturating_mul(space.f_frsize)))
}

/// `No such file or directory (os error 2)` without the number.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

fn parse(text: &str, ram_usable: u64) -> Result<Spec, Failure> {
    let bad = |why: &str| Failure::usage(format!("--swap {text}: {why}"));
    match text {
        "auto" => return Ok(Spec::Auto),
        "ram" => return Ok(Spec::Ram),
        _ if text.starts_with("file:") => return Err(Failure::not_built("--swap file: (a named swap file)")),
        _ if text.starts_with("redis:") || text.starts_with("rediss:") => {
            return Err(Failure::not_built("--swap redis: (a remote store)"));
        }
        _ => {}
    }
    let rest = text.strip_prefix("dir:").ok_or_else(|| bad("unknown kind: use auto, ram or dir:DIR[,size=8G][,prio=N]"))?;
    let mut parts = rest.split(',');
    let dir = parts.next().filter(|dir| !dir.is_empty()).ok_or_else(|| bad("a directory is missing: dir:DIR"))?;
    let (mut size, mut prio) = (None, None);
    for part in parts {
        match part.split_once('=') {
            Some(("size", value)) if size.is_none() => {
                let bytes = size::parse(value, ram_usable).map_err(|why| bad(&why))?;
                if bytes < LEAST {
                    return Err(bad("size= must be at least 1M"));
                }
                size = Some(bytes);
            }
            Some(("prio", value)) if prio.is_none() => {
                let number: i16 = value.parse().map_err(|_| bad("prio= must be a number from -1 to 32767"))?;
                if number < -1 {
                    return Err(bad("prio= must be a number from -1 to 32767"));
                }
                prio = Some(i32::from(number));
            }
            Some(("size" | "prio", _)) => return Err(bad("size= or prio= is given twice")),
            _ => return Err(bad(&format!("unknown option `{part}`: dir: takes size= and prio="))),
        }
    }
    Ok(Spec::Dir { dir: PathBuf::from(dir), size, prio: prio.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_specs() {
        assert_eq!(parse("auto", 0), Ok(Spec::Auto));
        assert_eq!(parse("ram", 0), Ok(Spec::Ram));
        assert_eq!(parse("dir:/x", 0), Ok(Spec::Dir { dir: "/x".into(), size: None, prio: 0 }));
        let both = Spec::Dir { dir: "/x".into(), size: Some(8 << 30), prio: 5 };
        assert_eq!(parse("dir:/x,size=8G,prio=5", 0), Ok(both));
    }

    #[test]
    fn bad_specs() {
        for text in [
            "",
            "disk",
            "dir:",
            "dir:,size=1G",
            "dir:/x,size=",
            "dir:/x,size=0",
            "dir:/x,prio=x",
            "dir:/x,prio=-2",
            "dir:/x,discard",
            "dir:/x,size=1G,size=2G",
            "file:/x",
            "redis://h:1",
            "ram,size=1G",
            "DIR:/x",
        ] {
            let failure = parse(text, 0).expect_err(text);
            assert_eq!(failure.code, 2, "{text}");
        }
    }

    #[test]
    fn only_one_file() {
        let specs: Vec<String> = ["auto", "dir:/var/tmp"].map(String::from).into();
        assert!(resolve(&specs, 0).unwrap_err().line.contains("not built yet"));
        let ram: Vec<String> = ["ram", "ram"].map(String::from).into();
        assert_eq!(resolve(&ram, 0), Ok((Swap::Ram, None)));
    }

    #[test]
    fn tmpfs_is_refused() {
        if rustix::fs::statfs("/dev/shm").is_ok_and(|fs| fs.f_type as u64 == 0x0102_1994) {
            assert!(usable_dir(Path::new("/dev/shm")).unwrap_err().contains("tmpfs"));
        }
        assert!(usable_dir(Path::new("/nonexistent")).unwrap_err().contains("no such file"));
    }
}
