//! How much CPU time another process has had: to the nanosecond, by one system call, without any privilege.

use rustix::process::Pid;
use std::time::Duration;

/// Of the kernel's clocks of a process: the one of its scheduler (CPUCLOCK_SCHED).
const SCHED: libc::clockid_t = 2;

/// The number of a process's clock, as clock_getcpuclockid makes it, which asks the kernel once more whether there is such a
/// process.
pub fn number(pid: Pid) -> libc::clockid_t {
    (!pid.as_raw_nonzero().get() << 3) | SCHED
}

/// The CPU time of all threads of a process, those that have ended included. None: there is no such process. (A zombie is one.)
pub fn of(pid: Pid) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to what it is given.
    let is_there = unsafe { libc::clock_gettime(number(pid), &raw mut time) == 0 };
    is_there.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// That of the calling thread.
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
