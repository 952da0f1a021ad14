//! The swap areas of a process: its files, and its connections to servers.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

use lowtide_core::device::DeviceName;
use lowtide_core::store::{AreaStats, FileConfig, MAX_AREAS, Quota, RemoteConfig, Store, StoreError};
use lowtide_sys::Line;
use lowtide_wire::broker::{NAMED_FILE, of_file};
use lowtide_wire::segment::{self, AreaBudget, AreaSpec, Order, Proc, SwapArea, proc_state};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::process::{agent, broker, remote, say};

pub fn any_named() -> bool {
    agent::settings().swap.iter().any(has_name)
}

fn has_name(area: &SwapArea) -> bool {
    area.is_on() && area.spec().kind == segment::SWAP_FILE
}

pub fn named_is_left_to_another() -> bool {
    let areas = agent::settings().swap.iter().zip(&agent::segment().areas);
    let mut free = areas.filter(|(area, budget)| has_name(area) && budget.claimed.load(Ordering::Relaxed) == 0);
    free.next().is_some() && is_another_larger()
}

/// Whether a larger process has not registered its memory yet: it should get the named files, which
/// a launcher does not need.
fn is_another_larger() -> bool {
    let mine = agent::proc().ram_bytes.load(Ordering::Relaxed);
    let is_larger =
        |p: &Proc| p.state.load(Ordering::Relaxed) == proc_state::WATCHING && p.ram_bytes.load(Ordering::Relaxed) > mine;
    agent::segment().used_procs().iter().any(is_larger)
}

static CLAIMED: [AtomicBool; MAX_AREAS] = [const { AtomicBool::new(false) }; MAX_AREAS];

pub fn goes_to_a_larger(number: u8, order: Order) -> bool {
    let place = usize::from(number);
    let mine = agent::proc();
    let is_larger = |p: &Proc| {
        let has_complied = p.areas_now.get(place).is_none_or(|now| now.order.load(Ordering::Relaxed) == order.raw());
        let more = p.ram_bytes.load(Ordering::Relaxed) > mine.ram_bytes.load(Ordering::Relaxed);
        !core::ptr::eq(p, mine) && p.state.load(Ordering::Relaxed) == proc_state::ACTIVE && more && !has_complied
    };
    agent::settings().swap.get(place).is_some_and(has_name) && agent::segment().used_procs().iter().any(is_larger)
}

/// This process has closed its file in an area: a named file is free again, unless forked children
/// may read it.
pub fn gave_up(number: u8, has_forked: bool) {
    let place = usize::from(number);
    if CLAIMED.get(place).is_some_and(|claimed| claimed.swap(false, Ordering::Relaxed))
        && !has_forked
        && let Some(budget) = agent::segment().areas.get(place)
    {
        // Release: pairs with the AcqRel in `add`. This process no longer uses the file.
        budget.claimed.store(0, Ordering::Release);
    }
}

pub fn reset_after_fork() {
    CLAIMED.iter().for_each(|claimed| claimed.store(false, Ordering::Relaxed));
}

/// Failures are reported; the other areas are used.
pub fn add_all(store: &Store) {
    let mut failures: [Option<Failed>; MAX_AREAS] = [const { None }; MAX_AREAS];
    for ((number, area), failure) in (0..).zip(&agent::settings().swap).zip(&mut failures) {
        *failure = if area.is_on() { add(store, number).err() } else { None };
    }
    for (area, failure) in agent::settings().swap.iter().zip(failures) {
        let Some(failure) = failure else { continue };
        say_why_not(store, area.spec(), failure);
    }
}

pub fn add_one(store: &Store, number: u8) {
    if let Err(failure) = add(store, number)
        && let Some(area) = agent::settings().swap.get(usize::from(number))
    {
        say_why_not(store, area.spec(), failure);
    }
}

fn say_why_not(store: &Store, area: &AreaSpec, failure: Failed) {
    let mut line = begin(area);
    match failure {
        Failed::Taken => line.push(b": it is another process's of the run"),
        Failed::File(errno) => line.push(b": no swap file, error ").number(errno.raw_os_error() as u64),
        Failed::Store(StoreError::Io { errno, .. }) => {
            line.push(b": `lowtide run` can't be reached, error ").number(errno.raw_os_error() as u64)
        }
        Failed::Store(StoreError::NoMemory) => line.push(b": no memory for the tables of a swap area"),
        Failed::Store(_) => line.push(b": no swap area can be made of it"),
    };
    let without: &[u8] = if store.has_device() { b"without it" } else { b"with compressed RAM only" };
    say::warn(line.push(b"; a process goes on ").push(without).bytes());
}

pub fn say_what_fails(stats: &[AreaStats; MAX_AREAS], said: &mut [bool; MAX_AREAS]) {
    for ((area, stats), said) in agent::settings().swap.iter().zip(stats).zip(said) {
        let Some(errno) = stats.failing.filter(|_| !*said) else { continue };
        *said = true;
        let mut line = begin(area.spec());
        match errno {
            Errno::NOSPC if area.spec().kind == segment::SWAP_REMOTE => line.push(b": its memory is full (maxmemory)"),
            Errno::NOSPC | Errno::DQUOT => line.push(b": its file system is full"),
            Errno::NOTCONN => line.push(b": the server takes no pages"),
            Errno::FBIG => line.push(b": files may not get that large (`ulimit -f`, or its file system)"),
            _ => line.push(b": it can't be written, error ").number(errno.raw_os_error() as u64),
        };
        say::warn(line.push(b"; pages go elsewhere, and it is tried again now and then").bytes());
    }
}

fn begin(area: &AreaSpec) -> Line {
    let mut line = Line::new();
    match area.kind {
        segment::SWAP_FILE => line.push(b"file:").path(text(&area.name)),
        segment::SWAP_REMOTE => line.push(text(&area.name)),
        segment::SWAP_DIR => line.push(b"dir:").path(text(&area.dir)),
        kind => line.push(b"an area of unknown kind ").number(kind.into()),
    };
    line
}

enum Failed {
    /// A device that another process has claimed, or should get.
    Taken,
    File(Errno),
    Store(StoreError),
}

/// Uses the named file if unclaimed and due to this process; else an unnamed file, which always
/// disappears.
fn add(store: &Store, number: u8) -> Result<(), Failed> {
    let area = agent::settings().swap.get(usize::from(number)).ok_or(Failed::Taken)?.spec();
    let budget = agent::segment().areas.get(usize::from(number)).ok_or(Failed::Taken)?;
    let may_claim = area.kind == segment::SWAP_FILE && !is_another_larger();
    // AcqRel: pairs with the Release of the previous owner: in `gave_up`, below, or in `lowtide
    // run` (`live/areas.rs`).
    let named = may_claim && budget.claimed.swap(1, Ordering::AcqRel) == 0;
    let added = match area.kind {
        segment::SWAP_REMOTE => add_remote(store, number, area, budget),
        segment::SWAP_DIR | segment::SWAP_FILE => add_file(store, number, area, budget, named),
        _ => Err(Failed::File(Errno::INVAL)),
    };
    if named && added.is_err() {
        // Nothing was written: another process may try. Release: pairs with the AcqRel above.
        budget.claimed.store(0, Ordering::Release);
    } else if named && let Some(claimed) = CLAIMED.get(usize::from(number)) {
        claimed.store(true, Ordering::Relaxed);
    }
    added
}

fn add_file(
    store: &Store,
    number: u8,
    area: &'static AreaSpec,
    budget: &'static AreaBudget,
    named: bool,
) -> Result<(), Failed> {
    let (fd, name) = if named {
        (open_named(number, area).map_err(Failed::File)?, DeviceName { kind: "file:", path: text(&area.name), number })
    } else {
        (unnamed(&area.dir)?, DeviceName { kind: "dir:", path: text(&area.dir), number })
    };
    let (size, priority, discard, rotating) = (area.size, area.prio, area.discard != 0, area.rotating != 0);
    let quota = Some(quota(number, area, budget));
    let file = FileConfig { name, quota, priority, discard, rotating, ..FileConfig::new(fd, size) };
    #[cfg(feature = "lab")]
    let file = for_the_lab(file);
    store.add_file(file).map_err(Failed::Store)
}

fn add_remote(store: &Store, number: u8, area: &'static AreaSpec, budget: &'static AreaBudget) -> Result<(), Failed> {
    let name = DeviceName::of_server(text(&area.name), number);
    let quota = Some(quota(number, area, budget));
    let remote = RemoteConfig { open: remote::open, name, size: area.size, quota, priority: area.prio };
    store.add_remote(remote).map_err(Failed::Store)
}

fn quota(number: u8, area: &AreaSpec, budget: &'static AreaBudget) -> Quota {
    let mine = agent::proc().areas_now.get(usize::from(number)).map(|now| &now.charged);
    Quota { used: &budget.used, mine, limit: area.size }
}

#[cfg(feature = "lab")]
fn for_the_lab(file: FileConfig) -> FileConfig {
    use lowtide_core::slot::{Allocator, Policy};
    let slots = agent::settings().slots;
    let policy = Policy::ALL.get((slots as usize).wrapping_sub(1)).copied().unwrap_or_default();
    FileConfig { allocator: Allocator { policy, area_lock: slots == segment::SLOTS_AREA_LOCK }, ..file }
}

fn text(field: &[u8]) -> &[u8] {
    CStr::from_bytes_until_nul(field).map_or(&[], CStr::to_bytes)
}

fn unnamed(dir: &'static [u8]) -> Result<OwnedFd, Failed> {
    let dir = CStr::from_bytes_until_nul(dir).map_err(|_| Failed::File(Errno::INVAL))?;
    if dir.is_empty() {
        return Err(Failed::Taken);
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR).map_err(Failed::File)
}

/// From `lowtide run` if this process may not follow the path.
fn open_named(number: u8, area: &AreaSpec) -> Result<OwnedFd, Errno> {
    match open_path(&area.file) {
        Err(Errno::ACCESS | Errno::PERM) => broker::connect()?.ask_file(of_file(NAMED_FILE, number.into())),
        other => other,
    }
}

/// Opens a NUL-terminated path for reading and writing.
///
/// # Errors
/// Those of open.
pub fn open_path(path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = CStr::from_bytes_until_nul(path).map_err(|_| Errno::INVAL)?;
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}
