//! Children of `clone`. A copy of the memory is handled as a fork (`fork/mod.rs`), for which the C
//! library runs no handlers; threads, and children about to exec, pass.
//!
//! A copy includes the caller's stack: the child recovers there, then switches to its given stack,
//! which may be small.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use linux_raw_sys::general as sys;
use lowtide_sys::stat::parse_ended;

use crate::fork;
use crate::hooks;
use crate::hooks::errno::result;
use crate::process::thread::{self, syscall3, syscall6};
use crate::process::{agent, thread_end};
use crate::reclaimer::request;

/// Bytes of `struct clone_args`: version 1, and more than any.
const FIRST_VERSION: usize = 64;
const MOST: usize = 256;
const FLAGS: usize = 0;
const STACK: usize = 5;
const STACK_SIZE: usize = 6;
const TLS: usize = 7;
const EINVAL: usize = 22;
const ARCH_SET_FS: usize = 0x1002;
/// The end of the address space with four-level page tables.
const END: usize = (1 << 47) - 4096;

type Start = extern "C" fn(*mut c_void) -> c_int;

/// Not with CLONE_VFORK: the caller would wait for the child with the gate closed.
fn copies_memory(flags: usize) -> bool {
    flags as u32 & (sys::CLONE_VM | sys::CLONE_VFORK) == 0
}

/// The C library's `clone`.
///
/// # Safety
/// That of the C library's: `(start, stack, flags, argument, ...)`.
#[unsafe(naked)]
pub unsafe extern "C" fn clone() {
    // The caller's frame stays in use, so a child that shares the memory must not use it. Up to
    // `copy` this matches glibc.
    naked_asm!(
        "test rdi, rdi",
        "jz 4f",
        "and rsi, -16",
        "jz 4f",
        "test edx, {not_copied}",
        "jz {copy}",
        "mov [rsi - 8], rcx",
        "sub rsi, 16",
        "mov [rsi], rdi",
        "mov rdi, rdx",
        "mov rdx, r8",
        "mov r8, r9",
        "mov r10, [rsp + 8]",
        "mov eax, {number}",
        "syscall",
        "test rax, rax",
        "jl 3f",
        "jz 2f",
        "ret",
        ".cfi_startproc",
        ".cfi_undefined rip",
        "2:",
        "xor ebp, ebp",
        "pop rax",
        "pop rdi",
        "call rax",
        "mov rdi, rax",
        "mov eax, {exit}",
        "syscall",
        "ud2",
        ".cfi_endproc",
        "4:",
        "mov rax, -{invalid}",
        "3:",
        "mov rdi, rax",
        "jmp {result}",
        not_copied = const sys::CLONE_VM | sys::CLONE_VFORK,
        copy = sym copy,
        number = const sys::__NR_clone,
        exit = const sys::__NR_exit,
        invalid = const EINVAL,
        result = sym as_c_says,
    )
}

pub extern "C" fn as_c_says(r: isize) -> isize {
    result(r)
}

extern "C" fn copy(
    start: Start,
    stack: usize,
    flags: c_int,
    argument: *mut c_void,
    ptid: usize,
    tls: usize,
    ctid: usize,
) -> c_int {
    // SAFETY: the caller's own call, except that the child starts on a copy of this stack.
    let r = by_call(flags as usize, tls, |flags, tls| unsafe { syscall6(sys::__NR_clone, flags, 0, ptid, ctid, tls, 0) });
    if r == 0 {
        // SAFETY: the child's only thread leaves its frames for good, for its own stack.
        unsafe { goes_over(argument, start, stack) }
    }
    result(r) as c_int
}

/// On the new stack; a debugger finds no caller.
#[unsafe(naked)]
unsafe extern "C" fn goes_over(argument: *mut c_void, start: Start, stack: usize) -> ! {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined rip",
        "mov rsp, rdx",
        "xor ebp, ebp",
        "call rsi",
        "mov edi, eax",
        "call {ends}",
        "ud2",
        ".cfi_endproc",
        ends = sym ends,
    )
}

/// [`RUNS`], or the exit status of a first thread that ended by the call that ends one thread.
static ENDED: AtomicI32 = AtomicI32::new(RUNS);
const RUNS: i32 = -1;
/// The first thread has ended unseen by hooks: by a bare system call, or as the last thread of a
/// process that the C library does not know (`clone`).
static HAS_ENDED_BARE: AtomicBool = AtomicBool::new(false);

pub fn is_first() -> bool {
    agent::has_threads() && thread::id() == agent::pid()
}

/// The process ends with the program's last thread, despite lowtide's.
pub extern "C" fn ends(status: c_int) -> ! {
    if is_first() {
        if thread::has_one(agent::proc().own_threads()) {
            hooks::exit(status);
        }
        // Release: pairs with the Acquire in `end_with_program`.
        ENDED.store(status & 0xff, Ordering::Release);
        request::ring();
    }
    loop {
        // SAFETY: ends this thread.
        unsafe { syscall6(sys::__NR_exit, status as usize, 0, 0, 0, 0, 0) };
    }
}

/// For the reclaimer: ends the process after the program's last thread. Returns whether to check
/// again soon.
pub fn end_with_program() -> bool {
    // Acquire: pairs with the Release in `ends`.
    let mut status = ENDED.load(Ordering::Acquire);
    if status == RUNS && HAS_ENDED_BARE.load(Ordering::Relaxed) {
        status = thread::read_stat(b"/proc/self/stat", parse_ended).unwrap_or(RUNS);
    }
    if status != RUNS && thread::has_one(agent::proc().own_threads()) {
        hooks::exit(status);
    }
    status != RUNS
}

pub fn first_has_ended() {
    HAS_ENDED_BARE.store(true, Ordering::Relaxed);
}

pub fn reset_after_fork() {
    ENDED.store(RUNS, Ordering::Relaxed);
    HAS_ENDED_BARE.store(false, Ordering::Relaxed);
}

/// The child sets a foreign %fs late: until it has recovered it needs the C library's.
fn by_call(flags: usize, tls: usize, make: impl FnOnce(usize, usize) -> isize) -> isize {
    let sets = flags as u32 & sys::CLONE_SETTLS != 0 && tls < END;
    let now = if sets { flags & !(sys::CLONE_SETTLS as usize) } else { flags };
    let r = fork::fork_by(flags as u32 & sys::CLONE_FILES != 0, || make(now, if sets { 0 } else { tls }));
    if r == 0 && sets {
        // SAFETY: the caller's own request; lowtide keeps nothing there.
        unsafe { syscall3(sys::__NR_arch_prctl, ARCH_SET_FS, tls, 0) };
    }
    r
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Returned {
    pub result: isize,
    /// The top of the stack to return on; 0: the caller's.
    pub stack: usize,
}

pub fn is_copy(number: u32, first: usize, second: usize) -> bool {
    match number {
        sys::__NR_clone => copies_memory(first),
        sys::__NR_clone3 => arguments(first, second).is_some_and(|words| copies_memory(words[FLAGS])),
        _ => true,
    }
}

/// `fork`, or a `clone` or `clone3` with [`is_copy`].
///
/// # Safety
/// That of the call.
pub unsafe fn system_call(number: u32, [a, b, c, d, e]: [usize; 5]) -> Returned {
    let (result, stack) = match number {
        sys::__NR_clone => {
            // SAFETY: as the caller promises; the stack comes later.
            (by_call(a, e, |flags, tls| unsafe { syscall6(number, flags, 0, c, d, tls, 0) }), b)
        }
        sys::__NR_clone3 => match arguments(a, b) {
            Some(mut words) => {
                // Otherwise the kernel refuses it.
                let is_right = |end| words[STACK] != 0 && words[STACK_SIZE] != 0 && end < END;
                let stack = words[STACK].checked_add(words[STACK_SIZE]).filter(|end| is_right(*end));
                if stack.is_some() {
                    (words[STACK], words[STACK_SIZE]) = (0, 0);
                }
                let (flags, tls) = (words[FLAGS], words[TLS]);
                let make = |flags, tls| {
                    (words[FLAGS], words[TLS]) = (flags, tls);
                    // SAFETY: as above; `words` has at least `b` bytes.
                    unsafe { syscall6(number, words.as_ptr().addr(), b, 0, 0, 0, 0) }
                };
                (by_call(flags, tls, make), stack.unwrap_or(0))
            }
            None => (-(EINVAL as isize), 0),
        },
        // SAFETY: as above.
        _ => (by_call(0, 0, |_, _| unsafe { syscall6(sys::__NR_fork, 0, 0, 0, 0, 0, 0) }), 0),
    };
    Returned { result, stack: if result == 0 { stack } else { 0 } }
}

/// None: the kernel would refuse it, or its size is unknown.
fn arguments(addr: usize, len: usize) -> Option<[usize; MOST / size_of::<usize>()]> {
    if !(FIRST_VERSION..=MOST).contains(&len) || !len.is_multiple_of(size_of::<usize>()) {
        return None;
    }
    let mut words = [0; MOST / size_of::<usize>()];
    for (at, word) in (addr..).step_by(size_of::<usize>()).zip(&mut words[..len / size_of::<usize>()]) {
        *word = thread_end::read::<1>(at)?[0];
    }
    Some(words)
}
