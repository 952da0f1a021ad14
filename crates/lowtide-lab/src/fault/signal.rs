//! Faults that the faulting thread serves itself, when it gets SIGBUS for them.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use lowtide_pager::sys::clock::now_ns;

use super::plain::{Hands, Served};

thread_local! {
    /// What this thread serves its faults with; null: it serves none.
    static CATCHER: Cell<*mut Catcher<'static>> = const { Cell::new(std::ptr::null_mut()) };
}

/// A thread's own service of its faults, until it is dropped by that thread.
pub struct Catcher<'a> {
    served: &'a Served,
    hands: Hands,
}

impl<'a> Catcher<'a> {
    /// This thread serves its own faults from now on.
    ///
    /// # Errors
    /// A line: the signal can't be caught.
    pub fn new(served: &'a Served, hands: Hands) -> Result<Box<Catcher<'a>>, String> {
        // SAFETY: all zeros are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = catch as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: a handler of the form that SA_SIGINFO asks for, for a signal that nobody else in this program catches.
        if unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } != 0 {
            return Err(format!("SIGBUS can't be caught: {}", std::io::Error::last_os_error()));
        }
        let mut catcher = Box::new(Catcher { served, hands });
        CATCHER.set(std::ptr::from_mut(&mut *catcher).cast());
        Ok(catcher)
    }
}

impl Drop for Catcher<'_> {
    fn drop(&mut self) {
        CATCHER.set(std::ptr::null_mut());
    }
}

extern "C" fn catch(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let now = now_ns();
    let catcher = CATCHER.get();
    if catcher.is_null() {
        // Not a fault of the experiment's: the program ends by it, when the instruction is tried again.
        // SAFETY: the default action is a valid one.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the thread that made it runs this in place of what it did, which was to touch a page and not to use the catcher;
    // dropping one takes it out of the cell first. The kernel gives an `info` with an address for SIGBUS.
    let (catcher, addr) = unsafe { (&mut *catcher, (*info).si_addr() as usize) };
    let done = catcher.served.serve(addr, now, &mut catcher.hands);
    if done.is_err() {
        // The next try of the instruction would end here again.
        // SAFETY: the default action is a valid one.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
    catcher.served.note(done);
}
