//! Signals are kept from the threads of a relay: they are the process's own.

use std::mem::MaybeUninit;

/// All signals are blocked in this thread, and in those that it starts, as long as this lives.
pub struct Blocked(libc::sigset_t);

impl Blocked {
    /// From now on.
    pub fn all() -> Blocked {
        let (mut all, mut before) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
        // SAFETY: zeroes are a set; the calls fill one, and read it and write the other.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            Blocked(before.assume_init())
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: reads the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
