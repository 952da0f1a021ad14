//! Keeps the process's signals from the threads of a relay.

use std::mem::MaybeUninit;

/// Blocks all signals in this thread and those that it starts, until dropped.
pub struct Blocked(libc::sigset_t);

impl Blocked {
    pub fn all() -> Blocked {
        let (mut all, mut before) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
        // SAFETY: zeroes are a valid set; the calls fill one, and read it and write the other.
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
