//! The end of a thread of the program. The kernel tells who joins it by a write to the thread's own memory
//! (CLONE_CHILD_CLEARTID), when the thread waits for no userfaultfd any more: where that page is out, the write is lost, and
//! who joins waits for ever. So the page is held in memory from the last call on that the C library makes for the thread: it
//! gives the thread's stack back by MADV_DONTNEED.
//!
//! (Stacks that the program made itself, and those of 16 KiB, are not given back so; the C library's restartable sequences,
//! glibc 2.35, at least bring the page in each time the thread gets its CPU back.)

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::gate::Call;
use crate::request::{Request, ask};
use crate::{agent, gate, thread};

/// The C library leaves so much of the stack at most below where it is, when it gives it back.
const NEAR: usize = 128 << 10;
/// Where glibc keeps a thread's id, from the beginning of its own data on (x86-64; all versions with `pthread_t` as they have
/// been since 2003).
const TID_OFFSET: usize = 0x2d0;
/// How often the page is brought in again that has left in the same moment.
const TRIES: usize = 16;

/// The word that the kernel clears when the calling thread ends. None: this is another C library, or another kind of thread.
fn tid_word() -> Option<*mut u32> {
    let own: usize;
    // SAFETY: reads the second word of what %fs points to, where the x86-64 ABI of C libraries has the thread's own data;
    // threads of the program have it.
    unsafe { asm!("mov {}, fs:[0x10]", out(reg) own, options(nostack, readonly, preserves_flags)) };
    let begin: usize;
    // SAFETY: as above, the first word.
    unsafe { asm!("mov {}, fs:[0]", out(reg) begin, options(nostack, readonly, preserves_flags)) };
    if own == 0 || own != begin {
        return None;
    }
    let word = (own + TID_OFFSET) as *mut u32;
    // SAFETY: glibc's data of a thread are longer than that; musl's are followed by the thread's stack or other data of it.
    let is_tid = unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Relaxed) == thread::id();
    is_tid.then_some(word)
}

/// The calling thread has given memory back by MADV_DONTNEED: perhaps the last that it does.
pub fn gave_back(addr: usize, len: usize) {
    let here = 0u8;
    let (here, end) = (core::ptr::from_ref(&here).addr(), addr.saturating_add(len));
    if end > here || here - end > NEAR {
        return;
    }
    let Some(pager) = agent::active() else { return };
    let Some(word) = tid_word() else { return };
    for _ in 0..TRIES {
        // SAFETY: the thread's own word. A write that changes nothing: then the page is there, and can be written.
        unsafe { AtomicU32::from_ptr(word) }.fetch_or(0, Ordering::Relaxed);
        let held = {
            // The keeper gives memory of the page map back only when nobody is there.
            let _inside = gate::enter(Call::Silent);
            pager.hold(word.addr())
        };
        match held {
            Some(true) => return,
            Some(false) => {}
            None => ask(Request::Word(word.addr())),
        }
    }
}
