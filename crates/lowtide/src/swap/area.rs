//! `--swap SPEC`: the requested areas, with their directories and files.

use crate::error::Failure;
use crate::supervisor::peer;
use crate::swap::file::SwapFile;
use crate::swap::place::{Place, how, turns};
use lowtide_config::place::chosen_dir;
use lowtide_config::reason;
use lowtide_config::size;
use lowtide_config::spec::{Spec, User};
use lowtide_core::device::{DeviceName, FileDevice};
use lowtide_core::store::MAX_AREAS;
use lowtide_remote::counts::Counts;
use lowtide_remote::relay::Relay;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub struct Swap {
    pub place: Where,
    /// Most bytes of files.
    pub size: u64,
    /// Higher first; areas of equal priority in turn.
    pub prio: i16,
    /// Returns free space to the file system.
    pub discard: bool,
    /// A rotational disk, by option or by the kernel.
    pub rotating: bool,
}

#[derive(Debug)]
pub enum Where {
    /// Unnamed files in this directory, an absolute path.
    Dir(PathBuf),
    /// A named file or a block device, and unnamed files beside it.
    File(SwapFile),
    Remote(Relay),
}

impl Swap {
    /// The user's SPEC without options.
    pub fn spec(&self) -> String {
        match &self.place {
            Where::Dir(dir) => format!("dir:{}", dir.display()),
            Where::File(file) => format!("file:{}", file.path.display()),
            Where::Remote(relay) => relay.server.to_string(),
        }
    }

    fn relay(&self) -> Option<&Relay> {
        if let Where::Remote(relay) = &self.place { Some(relay) } else { None }
    }

    /// Traffic between this process and the area's servers.
    pub fn counts(&self) -> Option<Arc<Counts>> {
        self.relay().map(Relay::counts)
    }

    /// New warnings; each begins with the SPEC.
    pub fn warnings(&self) -> Vec<String> {
        let warnings = self.relay().map(Relay::warnings).unwrap_or_default();
        warnings.into_iter().map(|why| format!("{}: {why}", self.spec())).collect()
    }

    /// The last step before a run: destroys its named file's content. Returns warnings. Lines begin
    /// with the SPEC.
    pub fn take(&mut self) -> Result<Vec<String>, String> {
        let spec = self.spec();
        match &mut self.place {
            Where::Dir(_) => Ok(Vec::new()),
            Where::File(file) => {
                file.take().map_err(|why| format!("{spec}: {why}"))?;
                self.discard = file.discard;
                Ok(file.warnings.drain(..).map(|why| format!("{spec}: {why}")).collect())
            }
            Where::Remote(relay) => relay.take().map(|()| Vec::new()).map_err(|why| format!("{spec}: {why}")),
        }
    }

    /// Begins to serve the processes, after the program's start. The error begins with the SPEC.
    pub fn start(&self) -> Result<(), String> {
        let Some(relay) = self.relay() else { return Ok(()) };
        relay.start(|socket| peer::of_run(socket).is_some()).map_err(|why| format!("{}: {why}", self.spec()))
    }

    /// Removes the run's remaining remote pages at its end. The warning begins with the SPEC.
    pub fn finish(&self) -> Option<String> {
        self.relay()?.finish(LAST_PATIENCE).map(|why| format!("{}: {why}", self.spec()))
    }

    /// How its files are read and written, in words; for a directory by making a file.
    pub fn how(&self) -> Result<String, String> {
        match &self.place {
            Where::Dir(dir) => Ok(Place::new(dir, Some(self.rotating))?.how),
            // Reopened: the flags of the open file stay.
            Where::File(file) => {
                let path = format!("/proc/self/fd/{}", file.file.as_raw_fd());
                let again = File::options().read(true).write(true).open(path).map_err(reason)?;
                let device = FileDevice::new(again.into(), DeviceName::default()).map_err(reason)?;
                Ok(how(&device, self.rotating))
            }
            Where::Remote(relay) => relay.how(),
        }
    }
}

/// Longest wait at a run's end for the removal of its pages on a server, while that progresses.
const LAST_PATIENCE: Duration = Duration::from_secs(60);

/// The priority of the first area without `prio=`; each further one has one less, so they are used
/// in the given order, after those with a priority (from -1 on, as in swapon(8)).
const FIRST_PRIO: i16 = -2;

/// Resolves the SPECs of a command line. The second value are warnings. No area: compressed RAM
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
        // An implicit area may be missing.
        if spec == Spec::Auto
            && chosen_dir().is_none()
            && let Err(why) = Place::auto()
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

/// Opens an area, which must differ from those before, and takes its file. The second value are
/// warnings. Lines begin with the SPEC.
pub fn open_one(text: &str, before: &[&Swap], ram_usable: u64) -> Result<(Swap, Vec<String>), Failure> {
    let spec = parse(text, ram_usable).map_err(Failure::usage)?;
    let (mut swap, mut warnings) = open(&spec, before).map_err(Failure::usage)?;
    warnings.extend(swap.take().map_err(Failure::usage)?);
    swap.start().map_err(Failure::failed)?;
    Ok((swap, warnings))
}

/// Whether a SPEC names an area that can be added; the error begins with the SPEC.
pub fn check(text: &str) -> Result<(), String> {
    match parse(text, u64::MAX)? {
        Spec::Ram => Err("ram: compressed RAM is always there: name dir:DIR or file:PATH".to_owned()),
        _ => Ok(()),
    }
}

/// The error begins with the SPEC.
fn parse(text: &str, ram_usable: u64) -> Result<Spec, String> {
    Spec::parse(text, User::Run { ram_usable }).map_err(|why| format!("{text}: {why}"))
}

/// Opens an area, which must differ from those before. Lines, of warnings too, begin with the SPEC.
fn open(spec: &Spec, before: &[&Swap]) -> Result<(Swap, Vec<String>), String> {
    let mut warnings = Vec::new();
    let failure = |why: String| {
        // An unknown option is part of the path. (Servers have none.)
        let commas = if spec.to_string().contains(',') && !matches!(spec, Spec::Remote { .. }) {
            " (of what follows a comma, size=, prio= and rotational are options, and for file: discard)"
        } else {
            ""
        };
        format!("{spec}: {why}{commas}")
    };
    let (place, size, discard, rotating) = match spec {
        Spec::Ram => return Err("ram: compressed RAM is always there: name dir:DIR or file:PATH".to_owned()),
        Spec::Auto => match (Place::auto(), chosen_dir()) {
            (Ok(place), _) => (Where::Dir(place.dir), place.default_size, false, place.rotating),
            (Err(why), Some(dir)) => return Err(failure(format!("LOWTIDE_DIR={}: {why}", dir.display()))),
            (Err(why), None) => return Err(failure(format!("{}: name dir:DIR or file:PATH", no_auto(&why)))),
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
            (Where::Dir(place.dir), size.unwrap_or(place.default_size), false, place.rotating)
        }
        Spec::File { path, size, discard, rotational, .. } => {
            // A second lock in this process would fail as well: this message is clearer.
            if before.iter().any(|area| matches!(&area.place, Where::File(file) if file.is(path))) {
                return Err(failure("this run uses it already, it is given twice: leave one out".to_owned()));
            }
            let mut file = SwapFile::open(path, *size, *discard).map_err(failure)?;
            warnings.extend(file.warnings.drain(..).map(|why| format!("{spec}: {why}")));
            let rotating = turns(&file.file, *rotational).map_err(failure)?;
            let (size, discard) = (file.size, file.discard);
            (Where::File(file), size, discard, rotating)
        }
        Spec::Remote { server, size, timeout, copies, .. } => {
            if before.iter().any(|area| matches!(&area.place, Where::Remote(relay) if relay.server.is_named_as(server))) {
                return Err(failure("this run uses it already, it is given twice: leave one out".to_owned()));
            }
            let opened = Relay::open(server, *size, *timeout, *copies).map_err(failure)?;
            warnings.extend(opened.warnings.into_iter().map(|why| format!("{spec}: {why}")));
            (Where::Remote(opened.relay), opened.size, true, false)
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

fn no_auto(why: &str) -> String {
    format!("no swap file in /var/tmp ({why})")
}

#[cfg(test)]
mod tests {
    use super::*;

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
