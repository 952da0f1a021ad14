//! Signals through a pollable descriptor.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::process::Signal;
use std::io;
use std::mem::MaybeUninit;

#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    pub fn of(signals: &[Signal]) -> SignalSet {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: zeroes are a valid set, which the calls change.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            SignalSet(set.assume_init())
        }
    }

    /// All but these (and the C library's internal ones).
    pub fn all_but(signals: &[Signal]) -> SignalSet {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: zeroes are a valid set, which the calls change.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            for signal in signals {
                libc::sigdelset(set.as_mut_ptr(), signal.as_raw());
            }
            SignalSet(set.assume_init())
        }
    }

    /// The kernel's form: bit n - 1 stands for signal n.
    pub fn bits(&self) -> u64 {
        // SAFETY: reads the set.
        let holds = |signal: libc::c_int| unsafe { libc::sigismember(&raw const self.0, signal) } == 1;
        (1..=64).filter(|signal| holds(*signal)).map(|signal| 1 << (signal - 1)).sum()
    }

    /// Blocks these too in the calling thread; returns the previous mask.
    pub fn block(&self) -> SignalSet {
        self.change(libc::SIG_BLOCK)
    }

    pub fn unblock(&self) {
        self.change(libc::SIG_UNBLOCK);
    }

    /// Blocks exactly these in the calling thread. Async-signal-safe.
    pub fn set_mask(&self) {
        self.change(libc::SIG_SETMASK);
    }

    fn change(&self, how: libc::c_int) -> SignalSet {
        let mut old = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: reads one set and writes the other; on failure that keeps zeroes, an empty set.
        unsafe {
            libc::pthread_sigmask(how, &raw const self.0, old.as_mut_ptr());
            SignalSet(old.assume_init())
        }
    }
}

pub struct Received {
    pub signal: Signal,
    /// The kernel sent it to the whole process group, as the terminal's ^C.
    pub from_kernel: bool,
    /// The number of the expired [`CpuAlarm`].
    ///
    /// [`CpuAlarm`]: crate::supervisor::cpu_alarm::CpuAlarm
    pub alarm: Option<u32>,
}

/// Blocked signals, to be read.
pub struct SignalFd {
    fd: OwnedFd,
}

impl SignalFd {
    /// Blocks these signals in this thread and those that it starts. Call it before other threads
    /// exist. The second value is the previous mask.
    ///
    /// # Errors
    /// Those of signalfd.
    pub fn new(signals: &SignalSet) -> io::Result<(SignalFd, SignalSet)> {
        let old = signals.block();
        // SAFETY: reads the set.
        let fd = unsafe { libc::signalfd(-1, &raw const signals.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd has just made it for this process.
        Ok((SignalFd { fd: unsafe { OwnedFd::from_raw_fd(fd) } }, old))
    }

    pub fn next(&self) -> Option<Received> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has this size.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if n != size as isize {
            return None;
        }
        // SAFETY: the kernel has filled it, and its number is a signal's; never one of the C
        // library's internal signals, which its functions can't block.
        let (info, signal) = unsafe {
            let info = info.assume_init();
            (info, Signal::from_raw_unchecked(info.ssi_signo as i32))
        };
        let is_alarm = info.ssi_code == libc::SI_TIMER && info.ssi_signo as i32 == libc::SIGRTMIN();
        let alarm = is_alarm.then_some(info.ssi_int as u32);
        Some(Received { signal, from_kernel: info.ssi_code == SI_KERNEL, alarm })
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `si_code` of a signal that the kernel made.
const SI_KERNEL: i32 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_held_back_and_read_real_time_ones_too() {
        // A separate thread keeps the signal masks of other tests unchanged.
        let test = || {
            // SAFETY: no other code here uses this signal.
            let real_time = unsafe { Signal::from_raw_unchecked(libc::SIGRTMIN() + 3) };
            let (signals, _) = SignalFd::new(&SignalSet::of(&[Signal::USR1, real_time])).unwrap();
            assert!(signals.next().is_none());
            for signal in [Signal::USR1, real_time] {
                // SAFETY: sends a signal to this thread, which blocks it.
                unsafe { libc::pthread_kill(libc::pthread_self(), signal.as_raw()) };
                let received = signals.next().expect("it came");
                assert!(received.signal == signal && !received.from_kernel && received.alarm.is_none());
            }
        };
        std::thread::spawn(test).join().unwrap();
    }
}
