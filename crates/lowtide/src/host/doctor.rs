//! `lowtide doctor`: this machine's abilities, and the command that would enable each missing one.

use crate::host::machine;
use crate::host::probe::{Door, Probe};
use crate::host::swap_race;
use crate::supervisor::in_thread;
use crate::swap::place::Place;
use linux_raw_sys::general as sys;
use lowtide_config::place::auto_dir;
use lowtide_config::reason;
use lowtide_config::size;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::fmt::Write as _;
use std::io::Write as _;

struct Line {
    mark: &'static str,
    what: &'static str,
    found: String,
}

/// Prints the report on standard output; 0 if `run` will work, else 1.
pub fn doctor() -> u8 {
    let probe = Probe::new();
    let refusal = probe.refusal();
    let uname = rustix::system::uname();
    let mut text = format!(
        "lowtide {} on Linux {}, {}\n",
        env!("CARGO_PKG_VERSION"),
        uname.release().to_string_lossy(),
        uname.machine().to_string_lossy()
    );
    for line in lines(&probe) {
        let _ = writeln!(text, "  {:<4} {:<16} {}", line.mark, line.what, line.found);
    }
    let _ = match &refusal {
        None => writeln!(text, "`lowtide run` works here."),
        Some(why) => writeln!(text, "`lowtide run` does not work here: {why}"),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    u8::from(refusal.is_some())
}

/// The whole report in order. (Over 70 lines: a line or two for each check.)
fn lines(probe: &Probe) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut add = |good: bool, what, found: String| lines.push(Line { mark: if good { "ok" } else { "NO" }, what, found });

    let (major, minor, _) = probe.kernel;
    add(probe.kernel >= (6, 8, 0), "kernel", format!("{major}.{minor} (6.8 or later is needed)"));
    match probe.door {
        Door::Device => add(true, "userfaultfd", "full mode, through /dev/userfaultfd".to_owned()),
        Door::Syscall => add(true, "userfaultfd", "full mode, through the system call".to_owned()),
        Door::Closed { device, syscall } => {
            add(false, "userfaultfd", format!("/dev/userfaultfd: {}; system call: {}", reason(device), reason(syscall)))
        }
    }
    let has = |feature: u32| probe.features & u64::from(feature) != 0;
    let mut missing: Vec<&str> = [
        (sys::UFFD_FEATURE_EVENT_FORK, "EVENT_FORK"),
        (sys::UFFD_FEATURE_EVENT_REMAP, "EVENT_REMAP"),
        (sys::UFFD_FEATURE_EVENT_REMOVE, "EVENT_REMOVE"),
        (sys::UFFD_FEATURE_EVENT_UNMAP, "EVENT_UNMAP"),
        (sys::UFFD_FEATURE_MOVE, "MOVE"),
    ]
    .into_iter()
    .filter(|&(feature, _)| !has(feature))
    .map(|(_, name)| name)
    .collect();
    let is_closed = matches!(probe.door, Door::Closed { .. });
    if is_closed {
        missing.clear();
        add(false, "its features", "not known until it can be opened".to_owned());
    } else if !missing.is_empty() {
        add(false, "its features", format!("this kernel lacks {}", missing.join(", ")));
    } else {
        match probe.handshake {
            Ok(()) => add(true, "its features", "fork, remap, remove and unmap events, UFFDIO_MOVE".to_owned()),
            Err(Errno::PERM) => add(false, "its features", "fork events need CAP_SYS_PTRACE, in no user namespace".to_owned()),
            Err(error) => add(false, "its features", reason(error)),
        }
    }
    match probe.pagemap_scan {
        Ok(()) => add(true, "PAGEMAP_SCAN", "works".to_owned()),
        Err(Errno::NOTTY) => add(false, "PAGEMAP_SCAN", "not in this kernel (6.7 or later has it)".to_owned()),
        Err(error) => add(false, "PAGEMAP_SCAN", reason(error)),
    }
    match probe.memfd_exec {
        Ok(()) => add(true, "memfd as code", "works".to_owned()),
        Err(error) => add(false, "memfd as code", format!("{}; a security policy forbids it", reason(error))),
    }

    lines.push(Line { mark: "", what: "privilege", found: probe.confinement.describe() });

    // `run` works without the following.
    let mut note = |what, found: String| lines.push(Line { mark: "", what, found });
    note(
        "faults",
        match in_thread::load() {
            Ok(_) => "each thread serves its own here, in processes that have many (`--faults auto`, the default)".to_owned(),
            Err(why) => format!("by threads of lowtide; each thread can't serve its own here: {why}"),
        },
    );
    let may_filter = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    note(
        "static programs",
        match may_filter {
            true => "limited, and so is what they execute".to_owned(),
            false => "limited; what they and programs of musl execute only where it preloads lowtide: the rest takes \
                      CAP_SYS_ADMIN or no_new_privs"
                .to_owned(),
        },
    );
    note(
        "regions",
        match probe.regions {
            Ok(()) => "the library works, without privilege (userfaultfd for user mode, SIGBUS)".to_owned(),
            Err(error) => format!("the library does not work: userfaultfd for user mode: {}", reason(error)),
        },
    );
    let dir = auto_dir();
    match Place::auto() {
        Ok(place) => {
            let most = size::show(place.default_size);
            note("swap file", format!("unnamed, in {}, up to {most}, {}", place.dir.display(), place.how));
        }
        Err(why) => note(
            "swap file",
            format!(
                "none in {} ({why}): `export LOWTIDE_DIR=DIR` names another place; without, compressed RAM only",
                dir.display()
            ),
        ),
    }
    note("RAM", size::show(machine::ram_total()));
    note(
        "the kernel's swap",
        swap_race::warning().unwrap_or_else(|| "no trouble with it in this kernel, or it is off".to_owned()),
    );
    note("memory counts", machine::counts());
    note("cgroup limit", machine::cgroup_limit().map_or_else(|| "none".to_owned(), size::show));
    note(
        "huge pages",
        match machine::thp().as_deref() {
            None => "not in this kernel".to_owned(),
            Some("always") => "always (evicted huge pages are split)".to_owned(),
            Some(setting) => setting.to_owned(),
        },
    );
    lines
}
