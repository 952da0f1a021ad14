//! Whether a CPU is free for work that can wait.

use lowtide_sys::{cpus, stat};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

const BUSY_US: u64 = 100_000;

pub struct Idle {
    loadavg: Option<OwnedFd>,
    cpus: u32,
    look_again_us: u64,
}

impl Idle {
    pub fn new() -> Idle {
        Idle { loadavg: None, cpus: cpus::allowed(), look_again_us: 0 }
    }

    /// Whether fewer other threads run than this process may use CPUs; no if unknown. Takes a
    /// system call.
    ///
    /// Threads on other processes' CPUs count too: a process with few of many CPUs may get a wrong
    /// no. The opposite error would take a quarter of its one CPU from a pinned program.
    pub fn is_cpu_free(&mut self, now_us: u64) -> bool {
        if now_us < self.look_again_us {
            return false;
        }
        if self.loadavg.is_none() {
            self.loadavg = rustix::fs::open(c"/proc/loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        }
        let mut text = [0; 64];
        let read = self.loadavg.as_ref().and_then(|fd| rustix::io::pread(fd, &mut text, 0).ok());
        let free = read.and_then(|n| stat::parse_running(&text[..n])).is_some_and(|running| running <= self.cpus);
        if !free {
            self.look_again_us = now_us + BUSY_US;
        }
        free
    }
}
