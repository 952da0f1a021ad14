//! In-thread delivery: the handler of SIGBUS.
//!
//! A thread that touches a missing page of a region gets SIGBUS with the page's address, and brings the page in itself. What
//! that takes is made beforehand (`workers.rs`): nothing is allocated here, and no lock is taken that the code under the signal
//! can hold, because whoever takes one of lowtide's locks has signals blocked and touches no region. All other signals are
//! blocked meanwhile. What is not a region's goes to the handler that was there before.

use core::mem::MaybeUninit;
use core::ptr;
use std::sync::OnceLock;

use lowtide_core::lock::Lock;

use crate::error::Error;
use crate::{registry, signals};

/// A signal raised by the kernel for an address, and not by a process or for broken memory.
const BUS_ADRERR: libc::c_int = 2;
/// Broken memory that no thread has touched yet.
const BUS_MCEERR_AO: libc::c_int = 5;

/// What was done about SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

static INSTALLED: Lock<bool> = Lock::new(false);

type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
type Handler = extern "C" fn(libc::c_int);

/// Installs the handler, once, and again where the program has none at all by now (who restores what was before theirs takes
/// this one away too). Handlers that the program installs later must call this one for addresses that are not theirs.
///
/// # Errors
/// [`Error::System`]: the kernel does not like it.
pub fn install() -> Result<(), Error> {
    let _blocked = signals::block();
    let mut done = INSTALLED.lock();
    let refused = || Error::System { what: "installing a handler of SIGBUS", errno: last_error() };
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the structure is filled by the call; and the handler is one that may run at any time.
    unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) != 0 {
            return Err(refused());
        }
        let before = before.assume_init();
        // Another handler may call this one, and would be called by it for ever.
        if *done && before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN {
            return Ok(());
        }
        // Known before the handler can run.
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

/// In a forked child, which has the handler from its parent.
///
/// # Safety
/// There is one thread.
pub unsafe fn reset_after_fork() {
    // SAFETY: handed on to the caller.
    unsafe { INSTALLED.reset_after_fork() };
}

fn last_error() -> rustix::io::Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(rustix::io::Errno::INVAL, rustix::io::Errno::from_raw_os_error)
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a siginfo that lives as long as the handler runs.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let instance = if code == BUS_ADRERR { registry::instances().find(addr) } else { None };
    // Another thread may have brought it in since: then nothing is done, and the thread finds it.
    if instance.is_none_or(|instance| !instance.serve(addr)) {
        // SAFETY: as the kernel called this handler.
        unsafe { pass_on(signal, info, context) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Does what would have been done without lowtide.
///
/// # Safety
/// The arguments are those of a handler of SIGBUS.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: what the program has installed is called as the kernel would call it: with the signals blocked that are to be,
    // and with these arguments.
    unsafe {
        // Above zero: raised by the kernel, which does not let it be ignored.
        let is_ignored = before.sa_sigaction == libc::SIG_IGN && (*info).si_code <= 0;
        if is_ignored {
            return;
        }
        if before.sa_sigaction == libc::SIG_DFL || before.sa_sigaction == libc::SIG_IGN {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
            // One that the kernel raised for what the thread does comes again by itself, with its address; one that was sent
            // does not, nor one that tells of broken memory elsewhere.
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
