//! Processes that the agent leaves alone, because their memory has another, incompatible manager.
//! `lowtide run` refuses such programs; this covers children, and what a file does not show.

use core::arch::asm;
use core::ffi::CStr;

use crate::hooks::objects;

/// Sanitizer runtimes: they map terabytes of shadow, map past the C library, and replace its
/// functions.
const RUNTIMES: [(&CStr, &[u8]); 4] = [
    (c"__asan_init", b"a process of the run is not limited: it is built with AddressSanitizer"),
    (c"__tsan_init", b"a process of the run is not limited: it is built with ThreadSanitizer"),
    (c"__msan_init", b"a process of the run is not limited: it is built with MemorySanitizer"),
    (c"__hwasan_init", b"a process of the run is not limited: it is built with HWAddressSanitizer"),
];
const VALGRIND: &[u8] = b"a process of the run is not limited: it runs under valgrind";

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

/// Valgrind's synthetic CPU has no userfaultfd and can't start lowtide's threads. It answers an
/// instruction sequence without effect elsewhere (`RUNNING_ON_VALGRIND` of valgrind.h).
fn in_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let question = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0usize;
    // SAFETY: rotates a register by 128 bits, and exchanges one with itself.
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
