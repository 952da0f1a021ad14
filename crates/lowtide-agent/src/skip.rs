//! Processes that the agent stays out of: those whose memory something else manages that can't share it. `lowtide run` refuses
//! such a program before it starts; this is for children, and for what can't be seen in a file.

use core::arch::asm;
use core::ffi::CStr;

use crate::objects;

/// What the runtimes of sanitizers define, and what is said of a process that has one. They lay out terabytes of shadow, map
/// and unmap past the C library, and take the place of its functions.
const RUNTIMES: [(&CStr, &[u8]); 4] = [
    (c"__asan_init", b"a process of the run is not limited: it is built with AddressSanitizer"),
    (c"__tsan_init", b"a process of the run is not limited: it is built with ThreadSanitizer"),
    (c"__msan_init", b"a process of the run is not limited: it is built with MemorySanitizer"),
    (c"__hwasan_init", b"a process of the run is not limited: it is built with HWAddressSanitizer"),
];
const VALGRIND: &[u8] = b"a process of the run is not limited: it runs under valgrind";

/// Why this process can't be managed, in words for the user.
pub fn why() -> Option<&'static [u8]> {
    if in_valgrind() {
        return Some(VALGRIND);
    }
    let mut why = None;
    objects::find(|object| {
        why = RUNTIMES.iter().find(|(name, _)| object.symbol(name).is_some()).map(|&(_, why)| why);
        why.is_some()
    });
    why
}

/// Valgrind runs the program on a processor of its own making, which has no userfaultfd and can't start our threads. It answers
/// to a sequence of instructions that does nothing elsewhere (`RUNNING_ON_VALGRIND` of valgrind.h).
fn in_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let question = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0usize;
    // SAFETY: rotates a register by 128 bits in all, and exchanges one with itself.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") &raw const question,
            inout("rdx") answer,
            options(nostack),
        );
    }
    answer != 0
}
