//! Children that `clone` makes. One that copies the memory goes the way of a fork (`atfork.rs`), whose handlers the C library
//! does not call for it. One that shares the memory is a thread, or about to execute something: it passes untouched.
//!
//! A copy has the caller's stack too. So the child comes to itself there, and only then goes over to the stack that it was given,
//! which may be small.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use linux_raw_sys::general as sys;
use lowtide_pager::sys::stat::parse_ended;

use crate::errno::result;
use crate::thread::{self, syscall3, syscall6};
use crate::{agent, atfork, hooks, request, thread_end};

/// Bytes of the kernel's `struct clone_args` in its first version, and more than it has in any.
const FIRST_VERSION: usize = 64;
const MOST: usize = 256;
/// Words of it: the flags, the stack and its size, and what %fs is to be.
const FLAGS: usize = 0;
const STACK: usize = 5;
const STACK_SIZE: usize = 6;
const TLS: usize = 7;
const EINVAL: usize = 22;
/// Of arch_prctl(2).
const ARCH_SET_FS: usize = 0x1002;
/// Where a program's addresses end, without five levels of page tables.
const END: usize = (1 << 47) - 4096;

/// What a child starts with.
type Start = extern "C" fn(*mut c_void) -> c_int;

/// Whether a child with these flags copies the memory. (With CLONE_VFORK the caller, with the gate closed, would wait for its end.)
fn copies_memory(flags: usize) -> bool {
    flags as u32 & (sys::CLONE_VM | sys::CLONE_VFORK) == 0
}

/// The C library's function of this name.
///
/// # Safety
/// That of the C library's: `(start, stack, flags, argument, ...)`.
#[unsafe(naked)]
pub unsafe extern "C" fn clone() {
    // A child that shares the memory may have no use for the caller's frame, which goes on meanwhile. So, up to `copy`, this is
    // what glibc does.
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

/// [`result`], for code that can't name it.
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
    // SAFETY: the caller's own call, but that the child begins on the copy of this stack.
    let r = by_call(flags as usize, tls, |flags, tls| unsafe { syscall6(sys::__NR_clone, flags, 0, ptid, ctid, tls, 0) });
    if r == 0 {
        // SAFETY: the child's only thread leaves its frames for good, for the stack that it was to begin on.
        unsafe { goes_over(argument, start, stack) }
    }
    result(r) as c_int
}

/// On a stack of its own: nothing that a debugger could find has called this.
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

/// With what status the first thread of this process has ended, by the call that ends one thread; else [`RUNS`].
static ENDED: AtomicI32 = AtomicI32::new(RUNS);
const RUNS: i32 = -1;
/// This process was made by `clone`. The C library does not know it, and counts threads that only its parent has: so it may end
/// the program's last thread by a bare system call.
static WAS_CLONED: AtomicBool = AtomicBool::new(false);

/// Whether the calling thread is the first of a process in which lowtide's threads are.
pub fn is_first() -> bool {
    agent::has_threads() && thread::id() == agent::pid()
}

/// The end of a process's first thread, by the call that ends one thread. The process ends with the program's last, though
/// lowtide's threads are there.
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

/// By the reclaimer: ends the process if the program's last thread has ended. Whether that is to be looked for again soon.
pub fn end_with_program() -> bool {
    // Acquire: pairs with the Release in `ends`.
    let mut status = ENDED.load(Ordering::Acquire);
    let is_told = status != RUNS;
    if !is_told && WAS_CLONED.load(Ordering::Relaxed) {
        status = thread::read_stat(b"/proc/self/stat", parse_ended).unwrap_or(RUNS);
    }
    // The first thread counts until the process ends.
    if status != RUNS && thread::has_one(agent::proc().own_threads()) {
        hooks::exit(status);
    }
    is_told
}

/// In a forked child.
pub fn reset_after_fork() {
    ENDED.store(RUNS, Ordering::Relaxed);
    WAS_CLONED.store(false, Ordering::Relaxed);
}

/// Makes a child by a call that takes these flags, and what its %fs is to be. What it is to begin with may be none of the C
/// library's, which the child needs until it has come to itself.
fn by_call(flags: usize, tls: usize, make: impl FnOnce(usize, usize) -> isize) -> isize {
    let sets = flags as u32 & sys::CLONE_SETTLS != 0 && tls < END;
    let now = if sets { flags & !(sys::CLONE_SETTLS as usize) } else { flags };
    let r = atfork::fork_by(flags as u32 & sys::CLONE_FILES != 0, || make(now, if sets { 0 } else { tls }));
    if r == 0 {
        WAS_CLONED.store(true, Ordering::Relaxed);
        if sets {
            // SAFETY: the caller's own wish. Nothing of lowtide's is there.
            unsafe { syscall3(sys::__NR_arch_prctl, ARCH_SET_FS, tls, 0) };
        }
    }
    r
}

/// What a system call has come to.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Returned {
    /// As the system call says it.
    pub result: isize,
    /// Where the stack ends on which it returns; 0: it stays the caller's.
    pub stack: usize,
}

/// Whether the call `clone` with these arguments, or `clone3`, is for [`system_call`].
pub fn is_copy(number: u32, first: usize, second: usize) -> bool {
    match number {
        sys::__NR_clone => copies_memory(first),
        sys::__NR_clone3 => arguments(first, second).is_some_and(|words| copies_memory(words[FLAGS])),
        _ => true,
    }
}

/// The call `fork`, or a `clone` or `clone3` of which [`is_copy`] says that it is one.
///
/// # Safety
/// That of the call.
pub unsafe fn system_call(number: u32, [a, b, c, d, e]: [usize; 5]) -> Returned {
    let (result, stack) = match number {
        sys::__NR_clone => {
            // SAFETY: handed on to the caller, but for the stack, which comes later.
            (by_call(a, e, |flags, tls| unsafe { syscall6(number, flags, 0, c, d, tls, 0) }), b)
        }
        sys::__NR_clone3 => match arguments(a, b) {
            Some(mut words) => {
                // Else the kernel refuses it.
                let is_right = |end| words[STACK] != 0 && words[STACK_SIZE] != 0 && end < END;
                let stack = words[STACK].checked_add(words[STACK_SIZE]).filter(|end| is_right(*end));
                if stack.is_some() {
                    (words[STACK], words[STACK_SIZE]) = (0, 0);
                }
                let (flags, tls) = (words[FLAGS], words[TLS]);
                let make = |flags, tls| {
                    (words[FLAGS], words[TLS]) = (flags, tls);
                    // SAFETY: as above. As many bytes are there.
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

/// A `struct clone_args`. None: what the kernel says to it is nothing that a child comes of, or nobody knows.
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
