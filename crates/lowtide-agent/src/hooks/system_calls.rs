//! The C library's `syscall`, with the same hooks as the functions.
//!
//! [`LIST`] and [`call`] alone know which. Other calls cost a table look-up: programs wait for
//! futexes and read clocks by this function.

use core::arch::naked_asm;
use core::ffi::{c_int, c_uint};

use linux_raw_sys::general as sys;

use crate::exec;
use crate::fork::clones::{self, Returned};
use crate::hooks::errno::result;
use crate::hooks::{self, other_doors};

const LIST: &[u32] = &[
    sys::__NR_mmap,
    sys::__NR_munmap,
    sys::__NR_mremap,
    sys::__NR_madvise,
    sys::__NR_mprotect,
    sys::__NR_mlock,
    sys::__NR_mlock2,
    sys::__NR_munlock,
    sys::__NR_mlockall,
    sys::__NR_munlockall,
    sys::__NR_ioctl,
    sys::__NR_brk,
    sys::__NR_shmat,
    sys::__NR_process_madvise,
    sys::__NR_execve,
    sys::__NR_execveat,
    sys::__NR_exit,
    sys::__NR_exit_group,
    sys::__NR_fork,
    sys::__NR_clone,
    sys::__NR_clone3,
];

const MOST: usize = 512;

static HAS_HOOK: [bool; MOST] = {
    let mut table = [false; MOST];
    let mut i = 0;
    while i < LIST.len() {
        table[LIST[i] as usize] = true;
        i += 1;
    }
    table
};

/// # Safety
/// That of the C library's: `(number, ...)`, with up to six arguments.
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    naked_asm!(
        "cmp rdi, {most}",
        "jae 2f",
        "lea rax, [rip + {has_hook}]",
        "cmp byte ptr [rax + rdi], 0",
        "jne 5f",
        // As in glibc: a thread made here returns on its own stack.
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3:",
        "mov rdi, rax",
        "jmp {result}",
        "5:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {is_taken}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test al, al",
        "jz 2b",
        "push [rsp + 8]",
        "call {call}",
        "pop rcx",
        // A child switches to its stack, if given.
        "test rdx, rdx",
        "jz 6f",
        "mov rsp, rdx",
        "6:",
        "ret",
        most = const MOST,
        has_hook = sym HAS_HOOK,
        is_taken = sym is_taken,
        call = sym call,
        result = sym clones::as_c_says,
    )
}

extern "C" fn is_taken(number: u32, first: usize, second: usize) -> bool {
    // Otherwise lowtide's threads would keep the process alive.
    if number == sys::__NR_exit { clones::is_first() } else { clones::is_copy(number, first, second) }
}

extern "C" fn call(number: u32, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> Returned {
    let int = |argument: usize| argument as c_int;
    let r = match number {
        sys::__NR_mmap => hooks::mmap(a, b, int(c), int(d), int(e), f),
        sys::__NR_munmap => hooks::munmap(a, b) as isize,
        sys::__NR_mremap => hooks::remap::mremap(a, b, c, int(d), e),
        sys::__NR_madvise => hooks::madvise(a, b, int(c)) as isize,
        sys::__NR_mprotect => hooks::mprotect(a, b, int(c)) as isize,
        sys::__NR_mlock => hooks::mlock_(a, b) as isize,
        sys::__NR_mlock2 => hooks::mlock2(a, b, int(c)) as isize,
        sys::__NR_munlock => hooks::munlock(a, b) as isize,
        sys::__NR_mlockall => hooks::mlockall(int(a)) as isize,
        sys::__NR_munlockall => hooks::munlockall() as isize,
        sys::__NR_ioctl => hooks::ioctl(int(a), b, c) as isize,
        sys::__NR_brk => result(hooks::move_break(a) as isize),
        sys::__NR_shmat => other_doors::shmat(int(a), b, int(c)),
        sys::__NR_process_madvise => other_doors::process_madvise(int(a), b, c, int(d), e as c_uint),
        sys::__NR_execve => exec::execve(a as _, b as _, c as _) as isize,
        sys::__NR_execveat => exec::execveat(int(a), b as _, c as _, d as _, int(e)) as isize,
        sys::__NR_exit => clones::ends(int(a)),
        sys::__NR_exit_group => hooks::exit(int(a)),
        _ => {
            // SAFETY: the caller's own call.
            let returned = unsafe { clones::system_call(number, [a, b, c, d, e]) };
            return Returned { result: result(returned.result), ..returned };
        }
    };
    Returned { result: r, stack: 0 }
}
