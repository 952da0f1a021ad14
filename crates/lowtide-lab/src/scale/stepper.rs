//! Counts this process's instructions by single-stepping: the handler of the processor's trap
//! counts. So any growth shows, foreseen or not, except the kernel's work in a system call. lowtide
//! itself reports the locks' ranks and the visited places.
//!
//! One thread only: the figures are not locked.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use lowtide_core::lock;
use lowtide_wire::segment::LOOKED_AT;

use super::counts::Counts;

/// The processor's trap flag.
const TRAP: i64 = 1 << 8;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);
static LOCKED: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);
/// The stack pointer at the first counted instruction, or 0.
static STACK: AtomicU64 = AtomicU64::new(0);
static DEEPEST: AtomicU64 = AtomicU64::new(0);
/// Address of the instruction before.
static BEFORE: AtomicU64 = AtomicU64::new(0);

/// Makes this process ready to count.
///
/// # Errors
/// The kernel's error, in a line.
pub fn start() -> Result<(), String> {
    lock::count_taken();
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_step;
    // SAFETY: zeros are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler only reads executed code, and writes statics and its own context.
    match unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(format!("can't count instructions: {}", std::io::Error::last_os_error())),
    }
}

/// The counts of `f`, and of a few instructions before and after it.
pub fn counted<T>(f: impl FnOnce() -> T) -> (T, Counts) {
    let ((value, stepped), own) = locks(|| stepped(f));
    (value, Counts { taken: own.taken, places: own.places, ..stepped })
}

/// The same without stepping: locks and visited places only.
pub fn locks<T>(f: impl FnOnce() -> T) -> (T, Counts) {
    let (taken, places) = (lock::taken(), LOOKED_AT.load(Relaxed));
    let value = f();
    let now = lock::taken();
    let taken = std::array::from_fn(|rank| now[rank] - taken[rank]);
    (value, Counts { places: LOOKED_AT.load(Relaxed) - places, taken, ..Counts::default() })
}

fn stepped<T>(f: impl FnOnce() -> T) -> (T, Counts) {
    let figures = [&INSTRUCTIONS, &LOCKED, &CALLS, &DEEPEST];
    figures.iter().chain([&&STACK]).for_each(|figure| figure.store(0, Relaxed));
    IS_COUNTING.store(true, Relaxed);
    // SAFETY: sets the flag, whose signal has a handler; the stack is as before.
    unsafe { core::arch::asm!("pushfq", "or qword ptr [rsp], {trap}", "popfq", trap = const TRAP) };
    let value = f();
    IS_COUNTING.store(false, Relaxed);
    let [instructions, locked, calls, stack] = figures.map(|figure| figure.load(Relaxed));
    (value, Counts { instructions, locked, calls, stack, ..Counts::default() })
}

extern "C" fn on_step(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's context of this signal, which no other code uses.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    if !IS_COUNTING.load(Relaxed) {
        registers[libc::REG_EFL as usize] &= !TRAP;
        return;
    }
    let at = registers[libc::REG_RIP as usize] as u64;
    // A repeated one (a copy of bytes) stops after each repetition.
    if BEFORE.load(Relaxed) == at {
        return;
    }
    BEFORE.store(at, Relaxed);
    let stack = registers[libc::REG_RSP as usize] as u64;
    match STACK.load(Relaxed) {
        0 => STACK.store(stack, Relaxed),
        first => DEEPEST.store(DEEPEST.load(Relaxed).max(first.saturating_sub(stack)), Relaxed),
    }
    // SAFETY: a byte of an instruction that is about to be executed: `kind` reads no further.
    let kind = kind(|i| unsafe { std::ptr::with_exposed_provenance::<u8>(at as usize + i).read() });
    let add = |figure: &AtomicU64, is: bool| figure.store(figure.load(Relaxed) + u64::from(is), Relaxed);
    add(&INSTRUCTIONS, true);
    add(&LOCKED, kind == Kind::Locked);
    add(&CALLS, kind == Kind::Call);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Locked,
    Call,
}

/// The kind of the instruction with these bytes; reads none behind it.
fn kind(byte: impl Fn(usize) -> u8) -> Kind {
    let (mut at, mut locks) = (0, false);
    while matches!(byte(at), 0xf0 | 0xf2 | 0xf3 | 0x66 | 0x67 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65) {
        locks |= byte(at) == 0xf0;
        at += 1;
    }
    at += usize::from(byte(at) & 0xf0 == 0x40);
    match byte(at) {
        _ if locks => Kind::Locked,
        // An exchange with memory is locked without a prefix.
        0x86 | 0x87 if byte(at + 1) >> 6 != 3 => Kind::Locked,
        0x0f if byte(at + 1) == 0x05 => Kind::Call,
        _ => Kind::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_told_apart() {
        for (bytes, is) in [
            (&[0xf0, 0x48, 0x0f, 0xc1, 0x07][..], Kind::Locked),
            (&[0x3e, 0xf0, 0x0f, 0xb1, 0x0f], Kind::Locked),
            (&[0x48, 0x87, 0x07], Kind::Locked),
            (&[0x48, 0x87, 0xc3], Kind::Plain),
            (&[0x0f, 0x05], Kind::Call),
            (&[0xf3, 0xaa], Kind::Plain),
            (&[0x90], Kind::Plain),
            (&[0xc3], Kind::Plain),
        ] {
            assert_eq!(kind(|i| bytes[i]), is, "{bytes:x?}");
        }
    }
}
