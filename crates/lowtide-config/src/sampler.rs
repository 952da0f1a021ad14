//! Samples a session's memory from outside, to check limits in tests and the lab.
//!
//! A sample counts the resident anonymous pages of every process of the session that is not a
//! forked copy of its parent (shared pages would count twice), and memfds, through which lowtide
//! shares memory with its agents.

use crate::proc;

/// Samples of known processes between two scans for new ones.
const SAMPLES_PER_SCAN: usize = 4;

/// Whose memfds to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memfds {
    /// Nobody's.
    None,
    /// The session leader's, `lowtide run`.
    OfLeader,
    /// All processes', each once.
    OfAll,
}

/// Samples a session, and keeps the highest sum.
#[derive(Debug)]
pub struct Sampler {
    session: u32,
    memfds: Memfds,
    processes: Vec<u32>,
    shared: u64,
    /// Count of samples.
    pub samples: usize,
    /// The highest sum in bytes.
    pub peak: u64,
}

impl Sampler {
    /// For the session that the process `session` leads.
    pub fn new(session: u32, memfds: Memfds) -> Sampler {
        Sampler { session, memfds, processes: Vec::new(), shared: 0, samples: 0, peak: 0 }
    }

    /// Takes a sample.
    pub fn sample(&mut self) {
        if self.samples.is_multiple_of(SAMPLES_PER_SCAN) || self.processes.len() < 2 {
            let processes = proc::of_session(self.session).into_iter().filter(|process| !process.is_copy_of_its_parent());
            self.processes = processes.map(|process| process.pid).collect();
            self.shared = match self.memfds {
                Memfds::None => 0,
                Memfds::OfLeader => proc::memfd_bytes(&[self.session]),
                Memfds::OfAll => proc::memfd_bytes(&self.processes),
            };
        }
        self.samples += 1;
        self.peak = self.peak.max(self.shared + self.processes.iter().map(proc::anonymous).sum::<u64>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Signal;
    use std::os::unix::process::CommandExt;
    use std::time::{Duration, Instant};

    #[test]
    fn a_session_is_sampled_and_ended() {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "head -c 40000000 /dev/zero | tail -c 1000000000 | sleep 100"]);
        // SAFETY: one system call that touches no memory.
        unsafe { command.pre_exec(|| rustix::process::setsid().map(|_| ()).map_err(Into::into)) };
        let mut child = command.spawn().unwrap();
        let mut sampler = Sampler::new(child.id(), Memfds::OfAll);
        let began = Instant::now();
        // `tail` holds its input until it can write.
        while sampler.peak < 40_000_000 && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
            sampler.sample();
        }
        proc::of_session(child.id()).iter().for_each(|process| process.signal(Signal::KILL));
        assert!(!child.wait().unwrap().success());
        assert!(sampler.peak >= 40_000_000, "{} bytes seen", sampler.peak);
    }
}
