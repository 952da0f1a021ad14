//! The reader of `/proc` for the command, the lab and the tests. (The agent has its own, without
//! allocations.)
//!
//! A process may end at any moment: its values are then None, or 0.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, Signal};

/// More bytes than most files of `/proc` have.
const ROOM: usize = 4096;
/// The kernel's `PF_EXITING`.
const EXITING: u64 = 0x4;
/// The kernel's `PF_FORKNOEXEC`.
const FORKED_WITHOUT_EXEC: u64 = 0x40;

/// A process or thread from `/proc/PID/stat` or `/proc/PID/task/TID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Its id.
    pub pid: u32,
    /// Its `comm`: any text.
    pub name: String,
    /// `R`, `S`, `D`, `Z` and so on.
    pub state: char,
    /// Its parent's pid.
    pub parent: u32,
    /// The pid of its session's leader.
    pub session: u32,
    /// The kernel's `PF_` flags.
    pub flags: u64,
    /// User CPU time in clock ticks.
    pub user_ticks: u64,
    /// System CPU time in clock ticks.
    pub system_ticks: u64,
    /// Threads of the process.
    pub threads: u32,
    /// Start time in clock ticks since boot: with the pid, it identifies a process.
    pub start: u64,
}

/// Converts a pid; None: no process can have it. (Pids in shared memory may be anything.)
pub fn as_pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// Reads a short file of `/proc` in two calls. (`std::fs::read` begins with 32 bytes if the size is
/// unknown.)
///
/// # Errors
/// Those of opening and reading.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ROOM);
    // Avoids asking for the size.
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// `/proc/PID/status` of a process or thread.
#[derive(Debug, Default)]
pub struct Status(String);

impl Status {
    /// Of a process, a thread, or `self`.
    pub fn of(thread: impl Display) -> Option<Status> {
        read(format!("/proc/{thread}/status")).ok().map(Status::from)
    }

    /// A line's value, trimmed.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// A line's number.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.value(name)?.parse().ok()
    }

    /// A line's set as bits.
    pub fn bits(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.value(name)?, 16).ok()
    }
}

impl From<Vec<u8>> for Status {
    fn from(text: Vec<u8>) -> Status {
        // The process's name may be any bytes.
        Status(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The auxiliary vector of a 64-bit program, from `/proc/PID/auxv`.
#[derive(Debug)]
pub struct Auxv(Vec<u8>);

impl Auxv {
    /// Of a process.
    ///
    /// # Errors
    /// Those of opening and reading.
    pub fn of(pid: u32) -> io::Result<Auxv> {
        read(format!("/proc/{pid}/auxv")).map(Auxv)
    }

    /// The value of an `AT_` constant.
    pub fn value(&self, key: u64) -> Option<u64> {
        let pairs = self.0.as_chunks::<8>().0.as_chunks::<2>().0;
        pairs.iter().map(|pair| pair.map(u64::from_ne_bytes)).find_map(|[found, value]| (found == key).then_some(value))
    }
}

impl Stat {
    /// Of a process.
    pub fn of(pid: u32) -> Option<Stat> {
        Self::parse(&read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Of a thread of a process.
    pub fn of_thread(pid: u32, thread: u32) -> Option<Stat> {
        Self::parse(&read(format!("/proc/{pid}/task/{thread}/stat")).ok()?)
    }

    /// Reads the line.
    pub fn parse(line: &[u8]) -> Option<Stat> {
        // `pid (name) state ...`: the name may hold anything, but no later field holds a bracket.
        let (start, end) = (line.iter().position(|&b| b == b'(')?, line.iter().rposition(|&b| b == b')')?);
        let name = String::from_utf8_lossy(line.get(start + 1..end)?).into_owned();
        let fields: Vec<&str> = str::from_utf8(&line[end + 1..]).ok()?.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let small = |at: usize| fields.get(at)?.parse::<u32>().ok();
        Some(Stat {
            pid: str::from_utf8(&line[..start]).ok()?.trim().parse().ok()?,
            name,
            state: fields.first()?.chars().next()?,
            parent: small(1)?,
            session: small(3)?,
            flags: number(6)?,
            user_ticks: number(11)?,
            system_ticks: number(12)?,
            threads: small(17)?,
            start: number(19)?,
        })
    }

    /// Ended and not reaped. A first thread that ended before others looks the same.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Some thread of the process goes on.
    pub fn is_alive(&self) -> bool {
        !self.is_zombie() || self.threads > 1
    }

    /// It is ending, or has ended.
    pub fn is_exiting(&self) -> bool {
        self.flags & EXITING != 0
    }

    /// A forked child before its exec, whose pages still count as its parent's, too.
    pub fn is_copy_of_its_parent(&self) -> bool {
        self.flags & FORKED_WITHOUT_EXEC != 0
    }

    /// Sends a signal; ignores a missing process.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// All processes.
pub fn all() -> Vec<Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Stat::of(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The live processes of a session.
pub fn of_session(session: u32) -> Vec<Stat> {
    let mut found = all();
    found.retain(|process| process.session == session && !process.is_zombie());
    found
}

/// The ids of a process's threads; None: no such process, or invisible.
pub fn threads(pid: u32) -> Option<Vec<u32>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    Some(tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect())
}

/// A live thread of the process: the kernel shows no memory through an ended one, as the first may
/// be.
pub fn living_thread(pid: u32) -> u32 {
    let lives = |thread: &u32| Stat::of_thread(pid, *thread).is_some_and(|stat| stat.state != 'Z');
    if lives(&pid) { pid } else { threads(pid).unwrap_or_default().into_iter().find(lives).unwrap_or(pid) }
}

/// The threads' activities, a line each.
pub fn describe_threads(pid: u32) -> String {
    let describe = |thread: u32| {
        let read = |name| fs::read_to_string(format!("/proc/{pid}/task/{thread}/{name}")).unwrap_or_default();
        let [name, place, call] = ["comm", "wchan", "syscall"].map(read);
        format!("  {pid}/{thread} {} in {}: {}\n", name.trim(), place.trim(), call.trim())
    };
    threads(pid).unwrap_or_default().into_iter().map(describe).collect()
}

/// Resident pages, and the file-backed or shared ones among them, of a process or `self`.
fn statm(pid: impl Display) -> Option<(u64, u64)> {
    let text = String::from_utf8(read(format!("/proc/{pid}/statm")).ok()?).ok()?;
    let mut pages = text.split_ascii_whitespace().skip(1).map(|field| field.parse().ok());
    Some((pages.next()??, pages.next()??))
}

/// Resident bytes of a process or `self`.
pub fn resident(pid: impl Display) -> u64 {
    statm(pid).map_or(0, |(resident, _)| resident * rustix::param::page_size() as u64)
}

/// Resident private anonymous bytes of a process or `self`.
pub fn anonymous(pid: impl Display) -> u64 {
    let pages = statm(pid).map_or(0, |(resident, others)| resident.saturating_sub(others));
    pages * rustix::param::page_size() as u64
}

/// A process's proportional share of resident anonymous memory, in bytes. Takes the kernel 5 ms for
/// a GiB.
pub fn part_of_anonymous(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let part = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).unwrap_or_default();
    part.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// Bytes in the processes' memfds, each counted once.
pub fn memfd_bytes(pids: &[u32]) -> u64 {
    let mut seen = BTreeMap::new();
    for pid in pids {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        let memfds = files.filter(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:")));
        let sizes = memfds.filter_map(|path| fs::metadata(path).ok());
        seen.extend(sizes.map(|file| ((file.dev(), file.ino()), file.blocks() * 512)));
    }
    seen.values().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines() {
        let line = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 0 4242 99 1\n";
        let stat = Stat::parse(line.as_bytes()).unwrap();
        assert!(stat.is_alive() && stat.is_exiting() && !stat.is_copy_of_its_parent());
        assert_eq!((stat.pid, stat.name.as_str(), stat.state), (12, "a) b", 'S'));
        assert_eq!((stat.start, stat.parent, stat.session), (4242, 1, 3));
        assert_eq!((stat.user_ticks, stat.system_ticks, stat.threads), (11, 12, 1));
        let zombie = Stat::parse(line.replace(") S", ") Z").as_bytes()).unwrap();
        assert!(!zombie.is_alive());
        let others_go_on = Stat::parse(line.replace(") S", ") Z").replace("16 1 0", "16 3 0").as_bytes()).unwrap();
        assert!(others_go_on.is_alive() && others_go_on.is_zombie());
        for bad in ["", "12", "12 (a", "12 (a) S", ")12( S 1"] {
            assert!(Stat::parse(bad.as_bytes()).is_none(), "{bad}");
        }
        let odd_name = [b"7 (\xff (", &line.as_bytes()[4..]].concat();
        assert!(Stat::parse(&odd_name).unwrap().name.ends_with("(a) b"));
    }

    #[test]
    fn status_lines() {
        let status = Status::from(b"Name:\t\xff:\nUid:\t1\t2\nUidx:\t7\nSigPnd:\t00000000000001ff\nThreads:\t12\n".to_vec());
        assert_eq!((status.value("Uid"), status.value("id"), status.value("Gid")), (Some("1\t2"), None, None));
        assert_eq!((status.number("Threads"), status.number("Uid"), status.bits("SigPnd")), (Some(12), None, Some(0x1ff)));
        assert_eq!(Status::of("self").and_then(|status| status.number("Tgid")), Some(std::process::id()));
        assert!(Status::of(i32::MAX).is_none());
    }

    #[test]
    fn auxiliary_vector() {
        let own = Auxv::of(std::process::id()).unwrap();
        assert_eq!(own.value(6 /* AT_PAGESZ */), Some(rustix::param::page_size() as u64));
        assert_eq!(own.value(u64::MAX), None);
    }

    #[test]
    fn this_process() {
        let own = std::process::id();
        assert!(Stat::of(own).unwrap().is_alive() && all().iter().any(|process| process.pid == own));
        let threads = threads(own).unwrap();
        assert!(threads.contains(&own) && Stat::of_thread(own, own).is_some());
        assert!(describe_threads(own).lines().count() >= 1);
        assert!((4096..1 << 30).contains(&anonymous("self")) && resident(own) >= anonymous(own) / 2);
        assert!(Stat::of(i32::MAX as u32).is_none() && anonymous(i32::MAX) == 0);
        assert!(part_of_anonymous(own) > 0);
    }

    #[test]
    fn a_memfd_is_counted_once() {
        let before = memfd_bytes(&[std::process::id()]);
        let file = rustix::fs::memfd_create(c"lowtide-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let _same = rustix::io::fcntl_dupfd_cloexec(&file, 0).unwrap();
        rustix::io::write(&file, &[1; 40_000]).unwrap();
        assert_eq!(memfd_bytes(&[std::process::id()]) - before, 40_960);
    }
}
