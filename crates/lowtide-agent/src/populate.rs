//! Memory that the program asks to be filled by one call is filled in steps: until memory is adopted nothing holds such a call
//! back, and it could pass the limit by all that it names. Between two steps the reclaimer adopts memory when it is time, as
//! where the program touches it itself; from then on a step is held back at the limit like any touch.

use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;

use crate::agent;
use crate::thread::syscall3;

/// Bytes of a step: less than what the reclaimer leaves free for what a program touches while it is asleep.
const STEP: usize = 1 << 20;

/// Whether a call that fills this much is made in steps.
pub fn is_in_steps(len: usize) -> bool {
    len > STEP
}

/// madvise(MADV_POPULATE_READ or MADV_POPULATE_WRITE), in steps; what the kernel says to the first that fails, or 0.
pub fn advise(addr: usize, len: usize, advice: u32) -> isize {
    in_steps(addr, len, advice, || false)
}

/// Fills a new mapping as MAP_POPULATE would have, which is a hint: what can be adopted only until it is, for pages that come
/// in then only push others out.
pub fn mapped(addr: usize, len: usize, prot: u32, flags: u32, can_be_adopted: bool) {
    // As the kernel does it: shared pages are not written to, so that they stay clean.
    let copies = flags & sys::MAP_TYPE == sys::MAP_PRIVATE && prot & sys::PROT_WRITE != 0;
    let advice = if copies { sys::MADV_POPULATE_WRITE } else { sys::MADV_POPULATE_READ };
    in_steps(addr, len, advice, || can_be_adopted && agent::active().is_some());
}

fn in_steps(addr: usize, len: usize, advice: u32, is_over: impl Fn() -> bool) -> isize {
    // What is wrong with the whole call is for the kernel to say.
    let is_possible = len.checked_next_multiple_of(PAGE_SIZE).and_then(|len| addr.checked_add(len)).is_some();
    let step = if is_possible { STEP } else { len };
    let mut done = 0;
    while !is_over() {
        let part = (len - done).min(step);
        // SAFETY: changes no bytes; the caller's own call, or what it asked of its new mapping.
        let r = unsafe { syscall3(sys::__NR_madvise, addr + done, part, advice as usize) };
        done += part;
        if r != 0 || done >= len {
            return r;
        }
    }
    0
}
