//! Marks that hooks leave on thread stacks: they reveal who has left a hook
//! (`lowtide_core::visits`).
//!
//! For the program's threads, in signal handlers too: at most rare system calls that keep errno,
//! and no fault on unmapped memory.

use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::visits::{ALIGN, STRANGER, Visit};
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::process::thread::{self, syscall3, syscall6};
use crate::process::{agent, thread_end};

/// A later function may leave parts of its frame unwritten.
#[repr(align(64))]
pub struct Mark([AtomicU64; WORDS]);

const WORDS: usize = 16;

const _: () = assert!(align_of::<Mark>() == ALIGN);

impl Mark {
    pub const fn new() -> Mark {
        Mark([const { AtomicU64::new(0) }; WORDS])
    }

    pub fn visit(&self, who: u32) -> Visit {
        let visit = Visit::new(who, self.0.as_ptr().expose_provenance());
        let word = word(visit);
        self.0.iter().for_each(|at| at.store(word, Ordering::Relaxed));
        visit
    }
}

fn word(visit: Visit) -> u64 {
    u64::from(visit.mark()) << 32 | u64::from(visit.mark())
}

/// The calling thread's kernel id, or a stranger's in a child of a bare clone or vfork, where the C
/// library's id is another thread's.
pub fn who() -> u32 {
    let id = thread::id();
    if thread_end::kept_id() == Some(id) || agent::has_threads() { id } else { STRANGER }
}

fn is_there(visit: Visit) -> bool {
    let Some(at) = visit.at() else { return true };
    let at_once = [0u64; 2];
    let wait = (sys::FUTEX_WAIT | sys::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: reads a word, if mapped, and a timespec.
    let r = unsafe { syscall6(sys::__NR_futex, at, wait, visit.mark() as usize, at_once.as_ptr().addr(), 0, 0) };
    let is = |error: Errno| r == -error.raw_os_error() as isize;
    // Another word, or unmapped. A protection key may hide a mark that is there.
    !is(Errno::AGAIN) && (!is(Errno::FAULT) || is_mapped(at))
}

fn is_mapped(at: usize) -> bool {
    let mut is_in_memory = 0u8;
    // SAFETY: a query about one page, with room for the answer.
    let r = unsafe { syscall3(sys::__NR_mincore, at & !(PAGE_SIZE - 1), PAGE_SIZE, (&raw mut is_in_memory).addr()) };
    r != -Errno::NOMEM.raw_os_error() as isize
}

/// Whether the thread is on a signal stack without the older mark.
fn is_elsewhere(older: Visit) -> bool {
    #[repr(C)]
    struct Stack {
        start: usize,
        flags: u32,
        len: usize,
    }
    let mut stack = Stack { start: 0, flags: 0, len: 0 };
    // SAFETY: room for the result.
    let r = unsafe { syscall3(sys::__NR_sigaltstack, 0, (&raw mut stack).addr(), 0) };
    r == 0
        && stack.flags & sys::SS_ONSTACK != 0
        && older.at().is_some_and(|at| !(stack.start..stack.start.saturating_add(stack.len)).contains(&at))
}

#[cold]
pub fn is_over(older: Visit, now: Visit) -> bool {
    older.is_over(now, || is_there(older), || is_elsewhere(older))
}

#[cold]
pub fn is_left(visit: Visit) -> bool {
    is_gone(visit) || !is_there(visit)
}

fn is_gone(visit: Visit) -> bool {
    visit.who() != STRANGER && !thread::exists(visit.who())
}

/// The same by all of its mark. By the reclaimer.
pub fn is_surely_left(visit: Visit) -> bool {
    let is_whole = |at| match thread_end::read::<WORDS>(at) {
        Some(words) => words.iter().all(|found| *found as u64 == word(visit)),
        None => is_there(visit),
    };
    is_gone(visit) || !visit.at().is_none_or(is_whole)
}
