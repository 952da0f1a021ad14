//! Children that `clone` makes. One that copies the memory goes the way of a fork (`atfork.rs`), whose handlers the C library
//! does not call for it. One that shares the memory is a thread, or about to execute something: it passes untouched.
//!
//! A copy has the caller's stack too. So the child comes to itself there, and only then goes over to the stack that it was given,
//! which may be small.

use core::arch::{asm, naked_asm};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, Ordering};

use linux_raw_sys::general as sys;

use crate::errno::result;
use crate::thread::{self, syscall6};
use crate::{agent, atfork, hooks, request, thread_end};

/// Bytes of the kernel's `struct clone_args` in its first version, and more than it has in any.
const FIRST_VERSION: usize = 64;
const MOST: usize = 256;
/// Words of it: the flags, the stack and its size.
const FLAGS: usize = 0;
const STACK: usize = 5;
const STACK_SIZE: usize = 6;
const EINVAL: usize = 22;

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
        "2:",
        "xor ebp, ebp",
        "pop rax",
        "pop rdi",
        "call rax",
        "mov rdi, rax",
        "mov eax, {exit}",
        "syscall",
        "ud2",
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

extern "C" fn copy(start: Start, stack: usize, flags: c_int, argument: usize, ptid: usize, tls: usize, ctid: usize) -> c_int {
    let flags = flags as usize;
    // SAFETY: the caller's own call, but that the child begins on the copy of this stack.
    let r = by_call(flags, || unsafe { syscall6(sys::__NR_clone, flags, 0, ptid, ctid, tls, 0) });
    if r == 0 {
        // SAFETY: the child's only thread leaves its frames for good, for the stack that it was to begin on.
        unsafe {
            asm!(
                "mov rsp, {stack}",
                "xor ebp, ebp",
                "call {start}",
                "mov edi, eax",
                "call {ends}",
                "ud2",
                stack = in(reg) stack,
                start = in(reg) start,
                ends = sym ends,
                in("rdi") argument,
                options(noreturn)
            )
        }
    }
    result(r) as c_int
}

/// With what status the first thread of this process has ended, by the call that ends one thread; else [`RUNS`].
static ENDED: AtomicI32 = AtomicI32::new(RUNS);
const RUNS: i32 = -1;

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

/// By the reclaimer: ends the process if the program's last thread has ended. Whether that is to be looked for again.
pub fn end_with_program() -> bool {
    // Acquire: pairs with the Release in `ends`.
    let status = ENDED.load(Ordering::Acquire);
    // The first thread counts until the process ends.
    if status != RUNS && thread::others(agent::proc().own_threads()) == Some(1) {
        hooks::exit(status);
    }
    status != RUNS
}

/// In a forked child.
pub fn reset_after_fork() {
    ENDED.store(RUNS, Ordering::Relaxed);
}

fn by_call(flags: usize, make: impl FnOnce() -> isize) -> isize {
    atfork::fork_by(flags as u32 & sys::CLONE_FILES != 0, make)
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
            (by_call(a, || unsafe { syscall6(number, a, 0, c, d, e, 0) }), b)
        }
        sys::__NR_clone3 => match arguments(a, b) {
            Some(mut words) => {
                let stack = words[STACK].wrapping_add(words[STACK_SIZE]);
                (words[STACK], words[STACK_SIZE]) = (0, 0);
                // SAFETY: as above. As many bytes are there.
                (by_call(words[FLAGS], || unsafe { syscall6(number, words.as_ptr().addr(), b, 0, 0, 0, 0) }), stack)
            }
            None => (-(EINVAL as isize), 0),
        },
        // SAFETY: as above.
        _ => (by_call(0, || unsafe { syscall6(sys::__NR_fork, 0, 0, 0, 0, 0, 0) }), 0),
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
