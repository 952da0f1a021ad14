//! Blocks signals while a thread holds a lock of lowtide: a handler that touched a region would
//! wait for that lock.

use core::mem::MaybeUninit;

/// Signals that a thread raises by its own acts. Blocked, they would end the process. (abort()
/// unblocks SIGABRT.)
const SYNCHRONOUS: [libc::c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

pub fn all_others() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is filled before use, and the signals exist.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in SYNCHRONOUS {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

pub struct Blocked {
    before: libc::sigset_t,
    /// Not Send.
    _here: core::marker::PhantomData<*mut ()>,
}

pub fn block() -> Blocked {
    let mut before = MaybeUninit::uninit();
    // SAFETY: changes only this thread's mask and returns the old one; can't fail with these
    // arguments.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &all_others(), before.as_mut_ptr());
        Blocked { before: before.assume_init(), _here: core::marker::PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: an earlier mask of this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut()) };
    }
}
