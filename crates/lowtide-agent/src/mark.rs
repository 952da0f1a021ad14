//! The marks that hooks put on the stacks of threads: by these it is found out who is not inside any more
//! (`lowtide_core::visits`).
//!
//! By threads of the program, in signal handlers too, so that nothing but rare system calls is needed here, which leave errno
//! alone, and nothing faults that is not mapped any more.

use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::visits::{ALIGN, STRANGER, Visit};
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::thread::{self, syscall3, syscall6};
use crate::{agent, thread_end};

/// Words on the stack of a thread, for as long as it is inside. (Several: a function that is called later may leave some of its
/// own part of the stack as it was.)
#[repr(align(64))]
pub struct Mark([AtomicU64; WORDS]);

const WORDS: usize = 16;

const _: () = assert!(align_of::<Mark>() == ALIGN);

impl Mark {
    /// Nobody's yet.
    pub const fn new() -> Mark {
        Mark([const { AtomicU64::new(0) }; WORDS])
    }

    /// A visit of this thread that has this mark.
    pub fn visit(&self, who: u32) -> Visit {
        // (Others read it.)
        let visit = Visit::new(who, self.0.as_ptr().expose_provenance());
        let word = word(visit);
        self.0.iter().for_each(|at| at.store(word, Ordering::Relaxed));
        visit
    }
}

/// What each word of a mark says.
fn word(visit: Visit) -> u64 {
    u64::from(visit.mark()) << 32 | u64::from(visit.mark())
}

/// Whose visit this is: the calling thread's id, as the kernel has it, or a stranger's. The id that the C library keeps is another
/// one's in what a bare clone has made, and in children of vfork. Where it is the same, this is no such process.
pub fn who() -> u32 {
    let id = thread::id();
    if thread_end::kept_id() == Some(id) || agent::has_threads() { id } else { STRANGER }
}

/// Whether a mark is still there, by its beginning. Wherever that was: the kernel reads it.
fn is_there(visit: Visit) -> bool {
    let Some(at) = visit.at() else { return true };
    let at_once = [0u64; 2];
    let wait = (sys::FUTEX_WAIT | sys::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: reads a word, if there is one, and a timespec.
    let r = unsafe { syscall6(sys::__NR_futex, at, wait, visit.mark() as usize, at_once.as_ptr().addr(), 0, 0) };
    let is = |error: Errno| r == -error.raw_os_error() as isize;
    // Another word, or none. What this thread may not read (a protection key) may be there all the same.
    !is(Errno::AGAIN) && (!is(Errno::FAULT) || is_mapped(at))
}

fn is_mapped(at: usize) -> bool {
    let mut is_in_memory = 0u8;
    // SAFETY: it only asks, of one page, with room for the answer.
    let r = unsafe { syscall3(sys::__NR_mincore, at & !(PAGE_SIZE - 1), PAGE_SIZE, (&raw mut is_in_memory).addr()) };
    r != -Errno::NOMEM.raw_os_error() as isize
}

/// Whether the calling thread is on a signal stack on which the mark of an older visit is not.
fn is_elsewhere(older: Visit) -> bool {
    /// The kernel's `stack_t`.
    #[repr(C)]
    struct Stack {
        start: usize,
        flags: u32,
        len: usize,
    }
    let mut stack = Stack { start: 0, flags: 0, len: 0 };
    // SAFETY: room for what the kernel says.
    let r = unsafe { syscall3(sys::__NR_sigaltstack, 0, (&raw mut stack).addr(), 0) };
    r == 0
        && stack.flags & sys::SS_ONSTACK != 0
        && older.at().is_some_and(|at| !(stack.start..stack.start.saturating_add(stack.len)).contains(&at))
}

/// Whether a visit of the calling thread is over, now that it begins another.
#[cold]
pub fn is_over(older: Visit, now: Visit) -> bool {
    older.is_over(now, || is_there(older), || is_elsewhere(older))
}

/// Whether a visit of another thread is over for certain.
#[cold]
pub fn is_left(visit: Visit) -> bool {
    is_gone(visit) || !is_there(visit)
}

/// Whether there is no such thread. Of strangers nobody knows.
fn is_gone(visit: Visit) -> bool {
    visit.who() != STRANGER && !thread::exists(visit.who())
}

/// The same by all of its mark. By the reclaimer.
pub fn is_surely_left(visit: Visit) -> bool {
    let is_whole = |at| match thread_end::read::<WORDS>(at) {
        Some(words) => words.iter().all(|found| *found as u64 == word(visit)),
        // Not mapped, or not allowed.
        None => is_there(visit),
    };
    is_gone(visit) || !visit.at().is_none_or(is_whole)
}
