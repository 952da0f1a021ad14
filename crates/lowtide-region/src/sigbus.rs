//! In-thread delivery: the handler of SIGBUS.
//!
//! A thread that touches a missing page of a region gets SIGBUS and brings the page in. The handler
//! allocates nothing, and takes no lock that the interrupted code can hold, because holders of
//! lowtide's locks block signals and touch no region. All other signals are blocked meanwhile. The
//! previous handler gets other addresses.

use core::mem::MaybeUninit;
use core::ptr;
use std::sync::OnceLock;

use lowtide_core::lock::Lock;

use crate::error::Error;
use crate::{registry, signals};

/// An address, not a process or broken memory, caused the signal.
const BUS_ADRERR: libc::c_int = 2;
/// Broken memory, untouched so far.
const BUS_MCEERR_AO: libc::c_int = 5;

static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

static INSTALLED: Lock<bool> = Lock::new(false);

type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
type Handler = extern "C" fn(libc::c_int);

/// Installs the handler once, and again if the program has restored an action without one. Later
/// handlers must call it for addresses that are not theirs.
///
/// # Errors
/// [`Error::System`]: the kernel refuses it.
pub fn install() -> Result<(), Error> {
    let _blocked = signals::block();
    let mut done = INSTALLED.lock();
    let refused = || Error::System { what: "installing a handler of SIGBUS", errno: last_error() };
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call fills the structure; the handler may run at any time.
    unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) != 0 {
            return Err(refused());
        }
        let before = before.assume_init();
        // A later handler may call this one: installed twice, they would loop.
        if *done && before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN {
            return Ok(());
        }
        // Before the handler can run.
        let _ = BEFORE.set(before);
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_sigbus as Action as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        action.sa_mask = signals::all_others();
        if libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) != 0 {
            return Err(refused());
        }
    }
    *done = true;
    Ok(())
}

/// # Safety
/// There is one thread.
pub unsafe fn reset_after_fork() {
    // SAFETY: as the caller promises.
    unsafe { INSTALLED.reset_after_fork() };
}

fn last_error() -> rustix::io::Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(rustix::io::Errno::INVAL, rustix::io::Errno::from_raw_os_error)
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel's siginfo lives as long as the handler runs.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let instance = if code == BUS_ADRERR { registry::instances().find(addr) } else { None };
    // If another thread has brought the page in, the retry finds it.
    if instance.is_none_or(|instance| !instance.serve(addr)) {
        // SAFETY: as the kernel called this handler.
        unsafe { pass_on(signal, info, context) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// # Safety
/// The arguments are those of a handler of SIGBUS.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: calls the program's handler as the kernel would: with its mask and these arguments.
    unsafe {
        // Above zero the kernel raised it, and it can't be ignored.
        let is_ignored = before.sa_sigaction == libc::SIG_IGN && (*info).si_code <= 0;
        if is_ignored {
            return;
        }
        if before.sa_sigaction == libc::SIG_DFL || before.sa_sigaction == libc::SIG_IGN {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
            // The kernel repeats a signal for the thread's own access; it does not repeat sent
            // ones, or those for broken memory elsewhere.
            if (*info).si_code <= 0 || (*info).si_code == BUS_MCEERR_AO {
                libc::raise(signal);
            }
            return;
        }
        let mut mask = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
        let all = 1..=libc::SIGRTMAX();
        for other in all.filter(|other| libc::sigismember(&before.sa_mask, *other) == 1) {
            libc::sigaddset(&mut mask, other);
        }
        if before.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut mask, libc::SIGBUS);
        }
        let mut ours = MaybeUninit::uninit();
        libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ours.as_mut_ptr());
        if before.sa_flags & libc::SA_SIGINFO != 0 {
            core::mem::transmute::<usize, Action>(before.sa_sigaction)(signal, info, context);
        } else {
            core::mem::transmute::<usize, Handler>(before.sa_sigaction)(signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, ours.as_ptr(), ptr::null_mut());
    }
}
