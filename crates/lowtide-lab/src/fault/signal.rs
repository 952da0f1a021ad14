//! Faults that the faulting thread serves itself in a signal handler: SIGBUS, or a BPF program's
//! signal.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use lowtide_sys::clock::now_ns;
use rustix::thread::gettid;

use super::by_bpf;
use super::counts::Counts;
use super::plain::{Hands, Served};

/// The handler's bytes of stack, beside the signal's frame.
pub const HANDLER_STACK: usize = 32 << 10;
/// For signals only, so that there is room for sure.
const ALTERNATE_STACK: usize = 64 << 10;
/// `si_code` of signals that the kernel sends.
const SI_KERNEL: c_int = 0x80;

thread_local! {
    /// This thread's catcher; null: it serves no faults.
    static CATCHER: Cell<*mut Catcher<'static>> = const { Cell::new(std::ptr::null_mut()) };
}

/// A thread's own service of its faults, until that thread drops it.
pub struct Catcher<'a> {
    served: &'a Served,
    hands: Hands,
    thread: u32,
    /// The signals' stack until the previous one is restored.
    _stack: Vec<u8>,
    stack_before: libc::stack_t,
}

pub fn handler() -> usize {
    catch as *const () as usize
}

impl<'a> Catcher<'a> {
    /// This thread serves its own faults from now on, with `signal` for each.
    ///
    /// # Errors
    /// A line: the signal can't be caught.
    pub fn new(served: &'a Served, hands: Hands, signal: c_int) -> Result<Box<Catcher<'a>>, String> {
        // SAFETY: all zeros are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler();
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: a handler with SA_SIGINFO's signature, for a signal that no other code in this
        // program catches.
        if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } != 0 {
            return Err(format!("signal {signal} can't be caught: {}", std::io::Error::last_os_error()));
        }
        let mut stack = vec![0; ALTERNATE_STACK];
        let new = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: ALTERNATE_STACK };
        let mut stack_before = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
        // SAFETY: the memory lives until the previous stack is restored.
        if unsafe { libc::sigaltstack(&raw const new, &raw mut stack_before) } != 0 {
            return Err(format!("no stack for signals: {}", std::io::Error::last_os_error()));
        }
        let thread = gettid().as_raw_nonzero().get().cast_unsigned();
        let mut catcher = Box::new(Catcher { served, hands, thread, _stack: stack, stack_before });
        CATCHER.set(std::ptr::from_mut(&mut *catcher).cast());
        Ok(catcher)
    }

    /// The counts so far. Call it on the thread itself, outside of the handler.
    pub fn counts(&self) -> Counts {
        self.hands.counts
    }
}

impl Drop for Catcher<'_> {
    fn drop(&mut self) {
        CATCHER.set(std::ptr::null_mut());
        // SAFETY: this thread's previous stack.
        unsafe { libc::sigaltstack(&raw const self.stack_before, std::ptr::null_mut()) };
    }
}

extern "C" fn catch(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let now = now_ns();
    let catcher = CATCHER.get();
    if catcher.is_null() {
        // Not a fault of the experiment: retrying the instruction ends the program. SAFETY: the
        // default action is a valid one.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the thread that made the catcher runs this in place of touching a page, so it is not
    // using the catcher; dropping one first clears the cell. The kernel passes a valid `info`.
    let (catcher, info) = unsafe { (&mut *catcher, &*info) };
    let addr = if signal == by_bpf::SIGNAL {
        let by_bpf = catcher.served.by_bpf().filter(|_| info.si_code == SI_KERNEL);
        by_bpf.and_then(|by_bpf| by_bpf.fault(info, catcher.thread)).map(|fault| fault.page)
    } else {
        // SAFETY: the kernel gives an address for SIGBUS.
        Some(unsafe { info.si_addr() } as usize)
    };
    // Retrying the instruction brings the signal again.
    let Some(addr) = addr else { return };
    let done = catcher.served.serve(addr, now, &mut catcher.hands);
    // The return from here.
    catcher.hands.counts.calls += 1;
    if done.is_err() {
        // Retrying the instruction would end here again. SAFETY: the default action is a valid one.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    catcher.served.note(done);
}
