//! Signals as something to wait for.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::process::Signal;
use std::io;
use std::mem::MaybeUninit;

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// These.
    pub fn of(signals: &[Signal]) -> SignalSet {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: zeroes are a set, which the calls change.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            SignalSet(set.assume_init())
        }
    }

    /// All but these (and but those that the C library keeps to itself).
    pub fn all_but(signals: &[Signal]) -> SignalSet {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: zeroes are a set, which the calls change.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            for signal in signals {
                libc::sigdelset(set.as_mut_ptr(), signal.as_raw());
            }
            SignalSet(set.assume_init())
        }
    }

    /// As the kernel has it: bit n - 1 stands for signal n.
    pub fn bits(&self) -> u64 {
        // SAFETY: reads the set.
        let holds = |signal: libc::c_int| unsafe { libc::sigismember(&raw const self.0, signal) } == 1;
        (1..=64).filter(|signal| holds(*signal)).map(|signal| 1 << (signal - 1)).sum()
    }

    /// Blocks these too in the calling thread; what was blocked before.
    pub fn block(&self) -> SignalSet {
        self.change(libc::SIG_BLOCK)
    }

    /// Lets these through to the calling thread.
    pub fn unblock(&self) {
        self.change(libc::SIG_UNBLOCK);
    }

    /// Blocks these in the calling thread, and no others. Async-signal-safe.
    pub fn set_mask(&self) {
        self.change(libc::SIG_SETMASK);
    }

    fn change(&self, how: libc::c_int) -> SignalSet {
        let mut old = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: a set to read and one to write; the call fills it, or leaves the zeroes, which are an empty set.
        unsafe {
            libc::pthread_sigmask(how, &raw const self.0, old.as_mut_ptr());
            SignalSet(old.assume_init())
        }
    }
}

/// A signal that came.
pub struct Received {
    /// Which.
    pub signal: Signal,
    /// The kernel has sent it, as it does with the terminal's ^C: the whole process group has got it.
    pub from_kernel: bool,
    /// The number of the alarm whose time has come ([`CpuAlarm`]).
    ///
    /// [`CpuAlarm`]: crate::supervisor::cpu_alarm::CpuAlarm
    pub alarm: Option<u32>,
}

/// Signals that are held back until they are asked for.
pub struct SignalFd {
    fd: OwnedFd,
}

impl SignalFd {
    /// Holds these signals back from now on, in this thread and in those that it starts. Call it before there are others. The
    /// second value is what was blocked before.
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
        // SAFETY: signalfd has just made it for us.
        Ok((SignalFd { fd: unsafe { OwnedFd::from_raw_fd(fd) } }, old))
    }

    /// The next signal that has come, if any.
    pub fn next(&self) -> Option<Received> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is as large as said.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if n != size as isize {
            return None;
        }
        // SAFETY: the kernel has filled it, and the number that it gives is a signal's; none of those that the C library keeps
        // to itself, which can't be blocked by its functions.
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
        // In a thread of its own, so that the mask of no other test changes.
        let test = || {
            // SAFETY: a signal that nobody else uses here.
            let real_time = unsafe { Signal::from_raw_unchecked(libc::SIGRTMIN() + 3) };
            let (signals, _) = SignalFd::new(&SignalSet::of(&[Signal::USR1, real_time])).unwrap();
            assert!(signals.next().is_none());
            for signal in [Signal::USR1, real_time] {
                // SAFETY: sends a signal to this thread, which holds it back.
                unsafe { libc::pthread_kill(libc::pthread_self(), signal.as_raw()) };
                let received = signals.next().expect("it came");
                assert!(received.signal == signal && !received.from_kernel && received.alarm.is_none());
            }
        };
        std::thread::spawn(test).join().unwrap();
    }
}
