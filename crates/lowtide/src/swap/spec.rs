//! `--swap SPEC`: what was asked for, and the directories and files behind it.

use crate::error::Failure;
use crate::size;
use crate::swap::file::SwapFile;
use crate::swap::place::{Place, how, reason, turns};
use lowtide_core::device::{DeviceName, FileDevice};
use lowtide_core::store::MAX_AREAS;
use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A swap area: where pages go that don't stay in RAM.
#[derive(Debug)]
pub struct Swap {
    /// What is there.
    pub place: Where,
    /// Most bytes of files.
    pub size: u64,
    /// Areas of higher priority are used first; those of the same in turn.
    pub prio: i16,
    /// Space that is free goes back to the file system.
    pub discard: bool,
    /// The disk turns, as was asked for or as the kernel says.
    pub rotating: bool,
}

/// What a swap area is made of.
#[derive(Debug)]
pub enum Where {
    /// Unnamed files in this directory, which is absolute.
    Dir(PathBuf),
    /// A named file or a block device, and unnamed files beside it.
    File(SwapFile),
}

impl Swap {
    /// As the user would write it, without options.
    pub fn spec(&self) -> String {
        match &self.place {
            Where::Dir(dir) => format!("dir:{}", dir.display()),
            Where::File(file) => format!("file:{}", file.path.display()),
        }
    }

    /// The last step before a run: what its file with a name held is gone. Gives what is odd about it, but not wrong.
    /// Lines begin with the SPEC.
    pub fn take(&mut self) -> Result<Vec<String>, String> {
        let spec = self.spec();
        let Where::File(file) = &mut self.place else { return Ok(Vec::new()) };
        file.take().map_err(|why| format!("{spec}: {why}"))?;
        self.discard = file.discard;
        Ok(file.warnings.drain(..).map(|why| format!("{spec}: {why}")).collect())
    }

    /// How its files are read and written, in words; for those in a directory found out by making one.
    pub fn how(&self) -> Result<String, String> {
        match &self.place {
            Where::Dir(dir) => Ok(Place::new(dir, Some(self.rotating))?.how),
            // Opened once more: the flags of what is open stay as they are.
            Where::File(file) => {
                let path = format!("/proc/self/fd/{}", file.file.as_raw_fd());
                let again = File::options().read(true).write(true).open(path).map_err(|error| reason(&error))?;
                let device = FileDevice::new(again.into(), DeviceName::default()).map_err(|error| reason(&error.into()))?;
                Ok(how(&device, self.rotating))
            }
        }
    }
}

/// One SPEC as written.
#[derive(Debug, PartialEq, Eq)]
pub enum Spec {
    /// An unnamed file where it fits best.
    Auto,
    /// Compressed RAM only.
    Ram,
    /// Unnamed files in a directory.
    #[allow(missing_docs)] // as they are written
    Dir { dir: PathBuf, size: Option<u64>, prio: Option<i16>, rotational: Option<bool> },
    /// A file, or a block device.
    #[allow(missing_docs)]
    File { path: PathBuf, size: Option<u64>, prio: Option<i16>, discard: bool, rotational: Option<bool> },
}

impl Spec {
    fn prio(&self) -> Option<i16> {
        match self {
            Spec::Auto | Spec::Ram => None,
            Spec::Dir { prio, .. } | Spec::File { prio, .. } => *prio,
        }
    }
}

/// Without options.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Auto => f.write_str("auto"),
            Spec::Ram => f.write_str("ram"),
            Spec::Dir { dir, .. } => write!(f, "dir:{}", dir.display()),
            Spec::File { path, .. } => write!(f, "file:{}", path.display()),
        }
    }
}

/// Smallest swap file that makes sense: one cluster.
pub const LEAST: u64 = 2 << 20;

/// The priority of the first area that has no `prio=`; each further one has one less, so that they are used in the order in
/// which they are given, after those with a priority (from -1 on, as swapon(8) has it).
const FIRST_PRIO: i16 = -2;

/// Resolves the SPECs of a command line. The second value are warnings: what is odd, but not wrong. No area: compressed RAM
/// only.
pub fn resolve(specs: &[String], ram_usable: u64) -> Result<(Vec<Swap>, Vec<String>), Failure> {
    let about = |why: String| Failure::usage(format!("--swap {why}"));
    let parsed = specs.iter().map(|text| parse(text, ram_usable)).collect::<Result<Vec<_>, _>>();
    let mut parsed = parsed.map_err(about)?;
    parsed.retain(|spec| *spec != Spec::Ram);
    if parsed.len() > MAX_AREAS {
        return Err(Failure::usage(format!(
            "--swap is given for {} areas, and {MAX_AREAS} are the most: leave some out",
            parsed.len()
        )));
    }
    let (mut areas, mut warnings): (Vec<Swap>, Vec<String>) = (Vec::new(), Vec::new());
    for spec in parsed {
        // What nobody asked for need not be there.
        if spec == Spec::Auto
            && !is_auto_chosen()
            && let Err(why) = auto_place()
        {
            warnings.push(format!("{}: compressed RAM only; LOWTIDE_DIR names another directory", no_auto(&why)));
            continue;
        }
        let before: Vec<&Swap> = areas.iter().collect();
        let (area, odd) = open(&spec, &before).map_err(about)?;
        warnings.extend(odd.into_iter().map(|why| format!("--swap {why}")));
        areas.push(area);
    }
    Ok((areas, warnings))
}

/// Opens what a SPEC names, which must be none of the areas before, and takes its file. The second value are warnings. Lines
/// begin with the SPEC.
pub fn open_one(text: &str, before: &[&Swap], ram_usable: u64) -> Result<(Swap, Vec<String>), Failure> {
    let spec = parse(text, ram_usable).map_err(Failure::usage)?;
    let (mut swap, mut warnings) = open(&spec, before).map_err(Failure::usage)?;
    warnings.extend(swap.take().map_err(Failure::usage)?);
    Ok((swap, warnings))
}

/// Whether a SPEC is one of an area that can be added; the error begins with the SPEC.
pub fn check(text: &str) -> Result<(), String> {
    match parse(text, u64::MAX)? {
        Spec::Ram => Err("ram: compressed RAM is always there: name dir:DIR or file:PATH".to_owned()),
        _ => Ok(()),
    }
}

/// Opens what a SPEC names, which must be none of the areas before. Lines, of warnings too, begin with the SPEC.
fn open(spec: &Spec, before: &[&Swap]) -> Result<(Swap, Vec<String>), String> {
    let mut warnings = Vec::new();
    let failure = |why: String| {
        // An option that does not exist is part of the path.
        let commas = if spec.to_string().contains(',') {
            " (of what follows a comma, size=, prio= and rotational are options, and for file: discard)"
        } else {
            ""
        };
        format!("{spec}: {why}{commas}")
    };
    let (place, size, discard, rotating) = match spec {
        Spec::Ram => return Err("ram: compressed RAM is always there: name dir:DIR or file:PATH".to_owned()),
        Spec::Auto => match auto_place() {
            Ok(place) => (Where::Dir(place.dir), place.free / 2, false, place.rotating),
            Err(why) if is_auto_chosen() => return Err(failure(format!("LOWTIDE_DIR={}: {why}", auto_dir().display()))),
            Err(why) => return Err(failure(format!("{}: name dir:DIR or file:PATH", no_auto(&why)))),
        },
        Spec::Dir { dir, size, rotational, .. } => {
            let place = Place::new(dir, *rotational).map_err(failure)?;
            if let Some(size) = size.filter(|&size| size > place.free) {
                let (free, size) = (size::show(place.free), size::show(size));
                warnings.push(format!("{spec}: there is only {free} free, less than size={size}"));
            }
            if place.in_ram {
                warnings.push(format!("{spec}: it is in RAM (tmpfs), so swapping to it saves nothing"));
            }
            (Where::Dir(place.dir), size.unwrap_or(place.free / 2), false, place.rotating)
        }
        Spec::File { path, size, discard, rotational, .. } => {
            // Another lock of the same process is refused as well: better say which.
            if before.iter().any(|area| matches!(&area.place, Where::File(file) if file.is(path))) {
                return Err(failure("this run uses it already, it is given twice: leave one out".to_owned()));
            }
            let mut file = SwapFile::open(path, *size, *discard).map_err(failure)?;
            warnings.extend(file.warnings.drain(..).map(|why| format!("{spec}: {why}")));
            let rotating = turns(&file.file, *rotational).map_err(failure)?;
            let (size, discard) = (file.size, file.discard);
            (Where::File(file), size, discard, rotating)
        }
    };
    if let Where::Dir(dir) = &place
        && before.iter().any(|area| matches!(&area.place, Where::Dir(other) if is_same(dir, other)))
    {
        return Err(failure(format!("{} is given twice: one area in a directory is enough", dir.display())));
    }
    let prio = spec.prio().unwrap_or_else(|| next_prio(before));
    Ok((Swap { place, size, prio, discard, rotating }, warnings))
}

/// The priority of an area without `prio=`, after these.
fn next_prio(before: &[&Swap]) -> i16 {
    before.iter().map(|area| area.prio - i16::from(area.prio > i16::MIN)).min().map_or(FIRST_PRIO, |next| next.min(FIRST_PRIO))
}

/// Whether two paths lead to the same file or directory.
pub fn is_same(a: &Path, b: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    id(a).is_some() && id(a) == id(b)
}

/// Whether the user chose the directory of `auto`.
fn is_auto_chosen() -> bool {
    std::env::var_os("LOWTIDE_DIR").is_some_and(|dir| !dir.is_empty())
}

fn no_auto(why: &str) -> String {
    format!("no swap file in /var/tmp ({why})")
}

/// The directory that `auto` uses.
pub fn auto_dir() -> PathBuf {
    std::env::var_os("LOWTIDE_DIR").filter(|dir| !dir.is_empty()).map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// The place that `auto` uses, or why it can't.
pub fn auto_place() -> Result<Place, String> {
    let place = Place::new(&auto_dir(), None)?;
    if place.in_ram {
        return Err("it is in RAM (tmpfs), so swapping to it saves nothing: name a directory on a disk".to_owned());
    }
    if place.free / 2 < LEAST {
        return Err("its file system is nearly full".to_owned());
    }
    Ok(place)
}

/// Reads one SPEC; the error begins with it.
pub fn parse(text: &str, ram_usable: u64) -> Result<Spec, String> {
    let bad = |why: &str| format!("{text}: {why}");
    let (kind, rest) = match text.split_once(':') {
        None if text == "auto" => return Ok(Spec::Auto),
        None if text == "ram" => return Ok(Spec::Ram),
        Some(("redis" | "rediss", _)) => return Err(Failure::not_built("redis: (a remote store)").line),
        Some((kind @ ("dir" | "file"), rest)) => (kind, rest),
        _ if text.starts_with("ram,") => return Err(bad("compressed RAM is no device: ram takes no options")),
        _ if text.starts_with("auto,") => {
            return Err(bad("auto takes no options: use dir:DIR[,size=8G][,prio=N][,rotational]"));
        }
        _ => {
            return Err(bad(
                "unknown kind: use auto, ram, dir:DIR[,size=8G][,prio=N][,rotational] or file:PATH[,size=8G][,prio=N][,rotational][,discard]",
            ));
        }
    };
    let (path, options) = split_options(rest);
    if path.is_empty() {
        return Err(bad(match kind {
            "dir" => "a directory is missing: dir:DIR",
            _ => "a path is missing: file:PATH",
        }));
    }
    let path = PathBuf::from(path);
    let (mut size, mut prio, mut discard, mut rotational) = (None, None, false, None);
    for part in options.split(',').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("size", value)) if size.is_none() => {
                let bytes = size::parse(value, ram_usable).map_err(|why| bad(&why))?;
                if bytes < LEAST {
                    return Err(bad("size= must be at least 2M"));
                }
                size = Some(bytes);
            }
            Some(("prio", value)) if prio.is_none() => {
                let number = value.parse().ok().filter(|number| *number >= -1);
                prio = Some(number.ok_or_else(|| bad("prio= must be a number from -1 to 32767"))?);
            }
            None if part == "discard" && kind == "file" && !discard => discard = true,
            None if part == "rotational" && rotational.is_none() => rotational = Some(true),
            Some(("rotational", value)) if rotational.is_none() => {
                let number = value.parse::<u8>().ok().filter(|number| *number <= 1);
                rotational = Some(number.ok_or_else(|| bad("rotational= must be 1 (the disk turns) or 0"))? == 1);
            }
            Some(("size" | "prio", _)) => return Err(bad("size= or prio= is given twice")),
            _ if kind == "dir" => {
                return Err(bad(&format!("unknown option `{part}`: dir: takes size=, prio= and rotational, each once")));
            }
            _ => {
                return Err(bad(&format!(
                    "unknown option `{part}`: file: takes size=, prio=, rotational and discard, each once"
                )));
            }
        }
    }
    Ok(match kind {
        "dir" => Spec::Dir { dir: path, size, prio, rotational },
        _ => Spec::File { path, size, prio, discard, rotational },
    })
}

/// The path, which may hold commas, and what follows it: after the last commas, all that looks like an option.
pub fn split_options(text: &str) -> (&str, &str) {
    let is_option = |part: &str| {
        let begins = |name: &&str| part.starts_with(*name);
        part == "discard" || part == "rotational" || ["size=", "prio=", "discard=", "rotational="].iter().any(begins)
    };
    let (mut path, mut options) = (text, "");
    while let Some((before, part)) = path.rsplit_once(',')
        && is_option(part)
    {
        (path, options) = (before, &text[before.len() + 1..]);
    }
    (path, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_specs() {
        assert_eq!(parse("auto", 0), Ok(Spec::Auto));
        assert_eq!(parse("ram", 0), Ok(Spec::Ram));
        assert_eq!(parse("dir:/x", 0), Ok(Spec::Dir { dir: "/x".into(), size: None, prio: None, rotational: None }));
        let both = Spec::Dir { dir: "/x".into(), size: Some(8 << 30), prio: Some(5), rotational: None };
        assert_eq!(parse("dir:/x,size=8G,prio=5", 0), Ok(both));
        assert_eq!(
            parse("file:/x", 0),
            Ok(Spec::File { path: "/x".into(), size: None, prio: None, discard: false, rotational: None })
        );
        let all =
            Spec::File { path: "/x:y".into(), size: Some(2 << 20), prio: Some(-1), discard: true, rotational: Some(true) };
        assert_eq!(parse("file:/x:y,discard,prio=-1,rotational,size=2M", 0), Ok(all));
        let rotational =
            [("", None), (",rotational", Some(true)), (",rotational=1", Some(true)), (",rotational=0", Some(false))];
        for (option, rotational) in rotational {
            let dir = Spec::Dir { dir: "/x".into(), size: None, prio: None, rotational };
            assert_eq!(parse(&format!("dir:/x{option}"), 0), Ok(dir));
        }
        let dir = |path: &str, prio| Ok(Spec::Dir { dir: path.into(), size: None, prio, rotational: None });
        assert_eq!(parse("dir:/a,b", 0), dir("/a,b", None));
        assert_eq!(parse("dir:/a,size=1G,b,prio=3", 0), dir("/a,size=1G,b", Some(3)));
        assert_eq!(parse("dir:/x,discarded,", 0), dir("/x,discarded,", None));
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
            "dir:/x,discard=no",
            "dir:/x,size=1G,size=2G",
            "file:",
            "file:,discard",
            "file:/x,discard,discard",
            "file:/x,discard=yes",
            "file:/x,prio=32768",
            "redis://h:1",
            "ram:",
            "ram,size=1G",
            "ram,rotational",
            "auto,rotational",
            "dir:/x,rotational=2",
            "dir:/x,rotational=",
            "file:/x,rotational,rotational=0",
            "DIR:/x",
        ] {
            assert!(parse(text, 0).is_err(), "{text}");
        }
    }

    fn areas(specs: &[&str]) -> Result<Vec<(String, i16)>, String> {
        let specs: Vec<String> = specs.iter().map(|spec| (*spec).to_owned()).collect();
        let (areas, _) = resolve(&specs, 0).map_err(|failure| failure.line)?;
        Ok(areas.iter().map(|area| (area.spec(), area.prio)).collect())
    }

    #[test]
    fn areas_without_a_priority_are_used_in_their_order_after_the_others() {
        let dirs: Vec<_> = (0..9).map(|_| tempfile::tempdir_in("/var/tmp").unwrap()).collect();
        let spec = |i: usize| format!("dir:{}", dirs[i].path().display());
        let given = [spec(0), "ram".to_owned(), spec(1) + ",prio=7", spec(2), spec(3) + ",prio=-1"];
        let found = areas(&given.each_ref().map(String::as_str)).unwrap();
        assert_eq!(found, [(spec(0), -2), (spec(1), 7), (spec(2), -3), (spec(3), -1)]);
        assert_eq!(areas(&["ram", "ram"]), Ok(Vec::new()));
        let all: Vec<String> = (0..9).map(spec).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(areas(&all[..8]).unwrap().last(), Some(&(spec(7), -9)));
        assert!(areas(&all).unwrap_err().contains("8 are the most"));
    }

    #[test]
    fn nothing_is_given_twice() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (path, link) = (dir.path().join("swap"), dir.path().join("link"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let (file, link) = (format!("file:{}", path.display()), format!("file:{}", link.display()));
        assert!(areas(&[&file, &link]).unwrap_err().contains("this run uses it already"));
        let (dir, dot) = (format!("dir:{}", dir.path().display()), format!("dir:{}/.,prio=3", dir.path().display()));
        assert!(areas(&[&dir, &dot]).unwrap_err().contains("is given twice"));
        assert_eq!(areas(&[&dir, &file]).unwrap().len(), 2, "a file in the directory is another area");
    }
}
