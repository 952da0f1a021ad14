//! Signals when another process has used CPU time, at no cost while it uses none: a kernel timer on
//! that process's CPU clock. The kernel checks it on clock ticks in the process, every 1 to 10
//! milliseconds.

use rustix::process::Pid;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{null_mut, without_provenance_mut};
use std::time::Duration;

use super::cpu_clock;

/// An alarm on a process's CPU clock. Its signal goes to the thread that made it
/// ([`Received::alarm`]), which must block all signals.
///
/// [`Received::alarm`]: crate::signal_fd::Received::alarm
pub struct CpuAlarm(libc::timer_t);

impl CpuAlarm {
    /// Makes an unset alarm whose signal carries `number`.
    ///
    /// # Errors
    /// Those of timer_create: there is no such process, or the user has too many signals and timers
    /// (`ulimit -i`).
    pub fn new(pid: Pid, number: u32) -> io::Result<CpuAlarm> {
        // SAFETY: zeroes are a valid sigevent.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_pid();
        // Real-time signals queue: one alarm's does not replace another's.
        event.sigev_signo = libc::SIGRTMIN();
        event.sigev_value = libc::sigval { sival_ptr: without_provenance_mut(number as usize) };
        let mut timer = MaybeUninit::uninit();
        // SAFETY: reads `event` and writes `timer`, which both live.
        if unsafe { libc::timer_create(cpu_clock::number(pid), &raw mut event, timer.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: written by the call.
        Ok(CpuAlarm(unsafe { timer.assume_init() }))
    }

    /// Arms the alarm once, at this CPU time of the process. False: the process is gone.
    pub fn set(&self, at: Duration) -> bool {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let at = libc::timespec { tv_sec: at.as_secs() as libc::time_t, tv_nsec: at.subsec_nanos().into() };
        let time = libc::itimerspec { it_interval: never, it_value: at };
        // SAFETY: the timer lives, and the kernel only reads `time`.
        unsafe { libc::timer_settime(self.0, libc::TIMER_ABSTIME, &raw const time, null_mut()) == 0 }
    }
}

impl Drop for CpuAlarm {
    fn drop(&mut self) {
        // SAFETY: the timer lives, and only this object has it.
        unsafe { libc::timer_delete(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal_fd::{SignalFd, SignalSet};
    use rustix::process::Signal;
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::Instant;

    #[test]
    fn it_comes_when_the_process_has_run_and_not_while_it_sleeps() {
        let test = || {
            // SAFETY: no other code here uses this signal.
            let real_time = unsafe { Signal::from_raw_unchecked(libc::SIGRTMIN()) };
            let (signals, _) = SignalFd::new(&SignalSet::of(&[real_time])).unwrap();
            let script = "read line; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; read line";
            let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
            let (pid, mut input) = (Pid::from_child(&child), child.stdin.take().unwrap());
            thread::sleep(Duration::from_millis(200));
            let alarms = [7, 77].map(|number| CpuAlarm::new(pid, number).unwrap());
            let before = cpu_clock::of(pid).unwrap();
            assert!(alarms[0].set(before + Duration::from_secs(1000)) && alarms[1].set(before + Duration::from_millis(1)));
            thread::sleep(Duration::from_millis(100));
            let early = signals.next().is_some();
            input.write_all(b"now\n").unwrap();
            let began = Instant::now();
            let received = loop {
                match signals.next() {
                    None if began.elapsed() < Duration::from_secs(20) => thread::sleep(Duration::from_millis(1)),
                    received => break received,
                }
            };
            let had = cpu_clock::of(pid).unwrap() - before;
            drop(input);
            child.wait().unwrap();
            assert!(!early, "it slept");
            assert_eq!(received.and_then(|received| received.alarm), Some(77));
            assert!(had >= Duration::from_millis(1) && signals.next().is_none(), "{had:?}");
            assert!(CpuAlarm::new(pid, 1).is_err(), "there is no such process any more");
        };
        // A separate thread keeps the signal masks of other tests unchanged.
        thread::spawn(test).join().unwrap();
    }
}
