//! The processes of a run, seen from outside through /proc.

use std::fs;

use rustix::process::{Pid, Signal};

/// `PF_FORKNOEXEC`: the process was forked and has not called exec since.
const FORKED_WITHOUT_EXEC: u64 = 0x40;

/// One process, as /proc/PID/stat shows it.
#[derive(Debug, Clone)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub state: char,
    pub session: u32,
    flags: u64,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may hold spaces and parentheses.
        let (head, tail) = text.rsplit_once(')')?;
        let fields: Vec<&str> = tail.split_whitespace().collect();
        Some(Self {
            pid,
            name: head.split_once('(')?.1.to_owned(),
            state: fields.first()?.chars().next()?,
            session: fields.get(3)?.parse().ok()?,
            flags: fields.get(6)?.parse().ok()?,
        })
    }

    /// A forked child that still shows its parent's pages as its own: counting both would count shared pages twice.
    pub fn is_copy_of_its_parent(&self) -> bool {
        self.flags & FORKED_WITHOUT_EXEC != 0
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Its part of resident anonymous memory in bytes: each page divided by how many processes map it; 0 for a process that has
    /// gone.
    pub fn part_of_anonymous(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid)).unwrap_or_default();
        let part = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).unwrap_or_default();
        part.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
    }

    /// Resident anonymous memory (RssAnon) in bytes; 0 for a process that has gone.
    pub fn anonymous(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/statm", self.pid)).unwrap_or_default();
        let mut pages = text.split_whitespace().skip(1).map(|field| field.parse::<u64>().unwrap_or(0));
        let (resident, file_and_shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
        resident.saturating_sub(file_and_shared) * 4096
    }
}

/// All processes that there are.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| Process::read(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// The living processes of a session. Each run has a session of its own, so that children are found whose parent has gone.
pub fn of_session(session: u32) -> Vec<Process> {
    let mut found = all();
    found.retain(|process| process.session == session && !matches!(process.state, 'Z' | 'X'));
    found
}

/// Memory (bytes) in the memfds that a process holds: what lowtide shares between the processes of a run.
pub fn memfd_bytes(pid: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:")))
        .filter_map(|path| Some(fs::metadata(path).ok()?.blocks() * 512))
        .sum()
}

/// What the threads of a session are doing: for the message when a run hangs.
pub fn describe(session: u32) -> String {
    let mut text = String::new();
    for process in of_session(session) {
        text += &format!("pid {} ({}):\n", process.pid, process.name);
        for task in fs::read_dir(format!("/proc/{}/task", process.pid)).into_iter().flatten().flatten() {
            let line = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default().trim().to_owned();
            text += &format!("  thread {:?} {}: {} [{}]\n", task.file_name(), line("comm"), line("wchan"), line("syscall"));
        }
    }
    text
}
