//! The memory of a run, seen from outside through /proc: the resident anonymous pages of each process of its session, and of a
//! run under lowtide also the memory that lowtide shares with its agents.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use lowtide_core::vm::PAGE_SIZE;
use rustix::process::{Pid, Signal, kill_process};

/// New processes are looked for less often than known ones are sampled.
const SAMPLES_PER_SCAN: usize = 4;
/// `PF_FORKNOEXEC`: forked and not yet another program. Its pages are its parent's, and would be counted twice.
const FORKED_WITHOUT_EXEC: u64 = 0x40;

/// Samples a session, and keeps the highest sum.
#[derive(Debug)]
pub struct Sampler {
    session: u32,
    processes: Vec<u32>,
    shared: u64,
    samples: usize,
    /// Highest sum in bytes.
    pub peak: u64,
}

impl Sampler {
    /// For the session that the process `session` leads.
    pub fn new(session: u32) -> Sampler {
        Sampler { session, processes: Vec::new(), shared: 0, samples: 0, peak: 0 }
    }

    /// Takes a sample.
    pub fn sample(&mut self) {
        if self.samples.is_multiple_of(SAMPLES_PER_SCAN) || self.processes.len() < 2 {
            self.processes = of_session(self.session, |flags| flags & FORKED_WITHOUT_EXEC == 0);
            self.shared = memfd_bytes(&self.processes);
        }
        self.samples += 1;
        self.peak = self.peak.max(self.shared + self.processes.iter().map(|pid| anonymous(*pid)).sum::<u64>());
    }
}

/// Ends all processes of a session.
pub fn kill_session(session: u32) {
    for pid in of_session(session, |_| true) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The processes of a session whose flags are as wanted.
fn of_session(session: u32, wanted: impl Fn(u64) -> bool) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| of(*pid).is_some_and(|(of, flags)| of == session && wanted(flags))).collect()
}

/// The session of a process and its flags.
fn of(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold spaces and parentheses.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(3);
    let session = fields.next()?.parse().ok()?;
    Some((session, fields.nth(2)?.parse().ok()?))
}

/// Resident anonymous memory of a process in bytes; 0 when it has gone.
fn anonymous(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = text.split_whitespace().skip(1).map(|field| field.parse::<u64>().unwrap_or(0));
    let (resident, of_files_or_shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(of_files_or_shared) * PAGE_SIZE as u64
}

/// Bytes in the memfds that processes hold, each once.
fn memfd_bytes(pids: &[u32]) -> u64 {
    let mut seen = BTreeMap::new();
    for pid in pids {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        let memfds = entries.filter(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:")));
        seen.extend(
            memfds.filter_map(|path| fs::metadata(path).ok()).map(|file| ((file.dev(), file.ino()), file.blocks() * 512)),
        );
    }
    seen.values().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_sampled_and_ended() {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "head -c 40000000 /dev/zero | tail -c 1000000000 | sleep 100"]);
        // SAFETY: one system call that touches no memory.
        unsafe { command.pre_exec(|| rustix::process::setsid().map(|_| ()).map_err(Into::into)) };
        let mut child = crate::programs::Started(command.spawn().unwrap());
        let mut sampler = Sampler::new(child.0.id());
        let began = std::time::Instant::now();
        // `tail` holds what it has read until it can write it.
        while sampler.peak < 40_000_000 {
            assert!(began.elapsed().as_secs() < 20, "{} bytes seen", sampler.peak);
            std::thread::sleep(std::time::Duration::from_millis(5));
            sampler.sample();
        }
        kill_session(child.0.id());
        assert!(!child.0.wait().unwrap().success());
    }
}
