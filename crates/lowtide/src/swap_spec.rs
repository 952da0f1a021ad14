//! `--swap SPEC`: what was asked for, and the directory behind it.

use crate::error::Failure;
use crate::size;
use crate::swap_file::SwapFile;
use lowtide_core::device::{DeviceName, FileDevice};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Where pages go that don't stay in RAM.
#[derive(Debug)]
pub enum Swap {
    /// Compressed RAM only.
    Ram,
    /// Compressed RAM, then an unnamed file.
    Dir {
        /// Directory of the file, absolute.
        dir: PathBuf,
        /// Most bytes of file.
        size: u64,
        /// Priority: kept for the statistics, there is one area.
        prio: i32,
    },
    /// Compressed RAM, then a named file or a block device.
    File {
        /// The file.
        file: SwapFile,
        /// Priority, as above.
        prio: i32,
    },
}

/// One SPEC as written.
#[derive(Debug, PartialEq, Eq)]
enum Spec {
    Auto,
    Ram,
    Dir { dir: PathBuf, size: Option<u64>, prio: i32 },
    File { path: PathBuf, size: Option<u64>, prio: i32, discard: bool },
}

/// Smallest swap file that makes sense: one cluster.
pub const LEAST: u64 = 2 << 20;

/// Resolves the SPECs of a command line. The second value are warnings: what is odd, but not wrong.
pub fn resolve(specs: &[String], ram_usable: u64) -> Result<(Swap, Vec<String>), Failure> {
    let specs = specs.iter().map(|text| parse(text, ram_usable)).collect::<Result<Vec<_>, _>>()?;
    if specs.iter().filter(|spec| **spec != Spec::Ram).count() > 1 {
        return Err(Failure::not_built("more than one --swap area that is a file"));
    }
    match specs.into_iter().find(|spec| *spec != Spec::Ram).unwrap_or(Spec::Ram) {
        Spec::Ram => Ok((Swap::Ram, Vec::new())),
        Spec::Dir { dir, size, prio } => {
            let spec = format!("--swap dir:{}", dir.display());
            let place = Place::new(&dir).map_err(|why| Failure::usage(format!("{spec}: {why}")))?;
            let mut warnings = Vec::new();
            if let Some(size) = size.filter(|&size| size > place.free) {
                let (free, size) = (size::show(place.free), size::show(size));
                warnings.push(format!("{spec}: there is only {free} free, less than size={size}"));
            }
            if place.in_ram {
                warnings.push(format!("{spec}: it is in RAM (tmpfs), so swapping to it saves nothing"));
            }
            Ok((Swap::Dir { dir: place.dir, size: size.unwrap_or(place.free / 2), prio }, warnings))
        }
        Spec::File { path, size, prio, discard } => {
            let spec = format!("--swap file:{}", path.display());
            let mut file = SwapFile::open(&path, size, discard).map_err(|why| Failure::usage(format!("{spec}: {why}")))?;
            let warnings = file.warnings.drain(..).map(|why| format!("{spec}: {why}")).collect();
            Ok((Swap::File { file, prio }, warnings))
        }
        Spec::Auto => auto(),
    }
}

/// `auto`: `$LOWTIDE_DIR`, else `/var/tmp`; up to half of what is free there.
fn auto() -> Result<(Swap, Vec<String>), Failure> {
    let chosen = std::env::var_os("LOWTIDE_DIR").filter(|dir| !dir.is_empty());
    match auto_place() {
        Ok(place) => Ok((Swap::Dir { dir: place.dir, size: place.free / 2, prio: 0 }, Vec::new())),
        Err(why) if chosen.is_some() => Err(Failure::usage(format!("LOWTIDE_DIR={}: {why}", auto_dir().display()))),
        Err(why) => {
            let warning = format!("no swap file in /var/tmp ({why}): compressed RAM only; LOWTIDE_DIR names another directory");
            Ok((Swap::Ram, vec![warning]))
        }
    }
}

/// The directory that `auto` uses.
pub fn auto_dir() -> PathBuf {
    std::env::var_os("LOWTIDE_DIR").filter(|dir| !dir.is_empty()).map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// The place that `auto` uses, or why it can't.
pub fn auto_place() -> Result<Place, String> {
    let place = Place::new(&auto_dir())?;
    if place.in_ram {
        return Err("it is in RAM (tmpfs), so swapping to it saves nothing: name a directory on a disk".to_owned());
    }
    if place.free / 2 < LEAST {
        return Err("its file system is nearly full".to_owned());
    }
    Ok(place)
}

/// A directory where unnamed swap files can be made.
#[derive(Debug)]
pub struct Place {
    /// Absolute.
    pub dir: PathBuf,
    /// Bytes that are free there.
    pub free: u64,
    /// Its files are in RAM.
    pub in_ram: bool,
    /// How files there are read and written, in words.
    pub how: String,
}

impl Place {
    /// Looks at a directory by making a file in it. The error says what is wrong.
    pub fn new(dir: &Path) -> Result<Place, String> {
        let dir = dir.canonicalize().map_err(|error| reason(&error))?;
        if !dir.is_dir() {
            return Err("not a directory".to_owned());
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(CWD, &dir, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                return Err(
                    "its file system has no unnamed files (O_TMPFILE): name a directory on ext4, xfs or btrfs".to_owned()
                );
            }
            Err(error) => return Err(format!("no file can be made there: {}", reason(&error.into()))),
        };
        if dir.as_os_str().len() >= 1024 {
            return Err("the path is too long".to_owned());
        }
        let space = rustix::fs::fstatvfs(&file).map_err(|error| reason(&error.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < LEAST {
            return Err("its file system is full: free some space, or name another directory".to_owned());
        }
        let in_ram = is_in_ram(&file);
        let device = FileDevice::new(file, DeviceName::default()).map_err(|error| reason(&error.into()))?;
        Ok(Place { dir, free, in_ram, how: how(&device) })
    }
}

/// How a swap file is read and written, in words.
pub fn how(device: &FileDevice) -> String {
    let cache = if device.is_direct() { "O_DIRECT" } else { "through the page cache (no O_DIRECT there)" };
    match device.has_rings() {
        Ok(()) => format!("{cache}, io_uring"),
        Err(errno) => format!("{cache}, pread and pwrite (io_uring: {})", reason(&errno.into())),
    }
}

/// Whether a file's bytes are in RAM (tmpfs, ramfs).
pub fn is_in_ram(file: impl rustix::fd::AsFd) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|fs| [TMPFS, RAMFS].contains(&(fs.f_type as u64 & 0xffff_ffff)))
}

/// `No such file or directory (os error 2)` without the number.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

fn parse(text: &str, ram_usable: u64) -> Result<Spec, Failure> {
    let bad = |why: &str| Failure::usage(format!("--swap {text}: {why}"));
    let (kind, rest) = match text.split_once(':') {
        None if text == "auto" => return Ok(Spec::Auto),
        None if text == "ram" => return Ok(Spec::Ram),
        Some(("redis" | "rediss", _)) => return Err(Failure::not_built("--swap redis: (a remote store)")),
        Some((kind @ ("dir" | "file"), rest)) => (kind, rest),
        _ => {
            return Err(bad(
                "unknown kind: use auto, ram, dir:DIR[,size=8G][,prio=N] or file:PATH[,size=8G][,prio=N][,discard]",
            ));
        }
    };
    let mut parts = rest.split(',');
    let path = parts.next().filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = path.ok_or_else(|| match kind {
        "dir" => bad("a directory is missing: dir:DIR"),
        _ => bad("a path is missing: file:PATH"),
    })?;
    let (mut size, mut prio, mut discard) = (None, None, false);
    for part in parts {
        match part.split_once('=') {
            Some(("size", value)) if size.is_none() => {
                let bytes = size::parse(value, ram_usable).map_err(|why| bad(&why))?;
                if bytes < LEAST {
                    return Err(bad("size= must be at least 2M"));
                }
                size = Some(bytes);
            }
            Some(("prio", value)) if prio.is_none() => {
                let number = value.parse().ok().filter(|number| (-1..=32767).contains(number));
                prio = Some(number.ok_or_else(|| bad("prio= must be a number from -1 to 32767"))?);
            }
            None if part == "discard" && kind == "file" && !discard => discard = true,
            Some(("size" | "prio", _)) => return Err(bad("size= or prio= is given twice")),
            _ if kind == "dir" => return Err(bad(&format!("unknown option `{part}`: dir: takes size= and prio="))),
            _ => return Err(bad(&format!("unknown option `{part}`: file: takes size=, prio= and discard, each once"))),
        }
    }
    let prio = prio.unwrap_or(0);
    Ok(match kind {
        "dir" => Spec::Dir { dir: path, size, prio },
        _ => Spec::File { path, size, prio, discard },
    })
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
        assert_eq!(parse("file:/x", 0), Ok(Spec::File { path: "/x".into(), size: None, prio: 0, discard: false }));
        let all = Spec::File { path: "/x:y".into(), size: Some(2 << 20), prio: -1, discard: true };
        assert_eq!(parse("file:/x:y,discard,prio=-1,size=2M", 0), Ok(all));
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
            "file:",
            "file:,discard",
            "file:/x,discard,discard",
            "file:/x,discard=yes",
            "file:/x,prio=32768",
            "redis://h:1",
            "ram:",
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
        assert!(matches!(resolve(&ram, 0), Ok((Swap::Ram, warnings)) if warnings.is_empty()));
    }

    #[test]
    fn places() {
        assert!(Place::new(Path::new("/nonexistent")).unwrap_err().contains("no such file"));
        if rustix::fs::statfs("/dev/shm").is_ok_and(|fs| fs.f_type as u64 == 0x0102_1994) {
            assert!(Place::new(Path::new("/dev/shm")).unwrap().in_ram);
            let (swap, warnings) = resolve(&["dir:/dev/shm,size=2M".to_owned()], 0).unwrap();
            assert!(matches!(swap, Swap::Dir { size: 0x200000, .. }) && warnings[0].contains("tmpfs"));
        }
    }
}
