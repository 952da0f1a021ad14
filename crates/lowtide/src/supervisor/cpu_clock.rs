//! Reads the CPU time of another process: in nanoseconds, by one system call, without privilege.

use rustix::process::Pid;
use std::time::Duration;

/// The kernel's CPUCLOCK_SCHED: the scheduler's clock of a process.
const SCHED: libc::clockid_t = 2;

/// The process's clock id, as clock_getcpuclockid makes it, without that function's check that the
/// process exists.
pub fn number(pid: Pid) -> libc::clockid_t {
    (!pid.as_raw_nonzero().get() << 3) | SCHED
}

/// CPU time of all threads of a process, ended ones included. None: there is no such process. (A
/// zombie counts as one.)
pub fn of(pid: Pid) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to `time` only.
    let is_there = unsafe { libc::clock_gettime(number(pid), &raw mut time) == 0 };
    is_there.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

pub fn of_this_thread() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_while_the_process_runs_and_ends_with_it() {
        let own = rustix::process::getpid();
        let before = of(own).unwrap();
        while of(own).unwrap() < before + Duration::from_millis(2) {}
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let asleep = || {
            std::thread::sleep(Duration::from_millis(50));
            of(pid).unwrap()
        };
        let mut last = asleep();
        while std::mem::replace(&mut last, asleep()) != last {}
        child.kill().unwrap();
        assert!(of(pid).is_some(), "nobody has waited for it");
        child.wait().unwrap();
        assert_eq!(of(pid), None);
    }
}
