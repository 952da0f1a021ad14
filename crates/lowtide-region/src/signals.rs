//! Signals are blocked while a thread holds a lock of lowtide: a handler that touched a region would wait for that lock.

use core::mem::MaybeUninit;

/// Those that a thread raises by what it does. Blocked, they would end the process at once. (SIGABRT is not among them: abort()
/// unblocks it.)
const SYNCHRONOUS: [libc::c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// All signals but those.
pub fn all_others() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is filled before it is used, and the signals exist.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in SYNCHRONOUS {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Signals are blocked in this thread until this is dropped, in the same thread.
pub struct Blocked {
    before: libc::sigset_t,
    /// Not to be sent to another thread.
    _here: core::marker::PhantomData<*mut ()>,
}

/// Blocks all signals but those that can't wait.
pub fn block() -> Blocked {
    let mut before = MaybeUninit::uninit();
    // SAFETY: changes this thread's mask only, and says what it was; it can't fail with these arguments.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &all_others(), before.as_mut_ptr());
        Blocked { before: before.assume_init(), _here: core::marker::PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: a mask that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut()) };
    }
}
