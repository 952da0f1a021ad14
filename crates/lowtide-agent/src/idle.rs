//! Whether there is time for work that can wait: the machine has a CPU to spare.

use lowtide_pager::sys::{cpus, stat};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

/// A machine that has no CPU to spare is not looked at again for this long.
const BUSY_US: u64 = 100_000;

/// What the reclaimer remembers to find out.
pub struct Idle {
    /// `/proc/loadavg`, once it was needed.
    loadavg: Option<OwnedFd>,
    /// CPUs that this process may use; those that are offline are not among them.
    cpus: u32,
    /// When to look for a free CPU again.
    look_again_us: u64,
}

impl Idle {
    /// To be asked from now on.
    pub fn new() -> Idle {
        Idle { loadavg: None, cpus: cpus::allowed(), look_again_us: 0 }
    }

    /// Whether fewer threads run, this one not counted, than this process may use CPUs. If it can't be told, no. To be asked
    /// last: it takes a system call.
    ///
    /// Threads on CPUs that are not this process's are counted too: where it has a few of many it is told no while its own are
    /// free. The other way round a program that keeps the one CPU busy that it is pinned to would lose a quarter of it.
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
