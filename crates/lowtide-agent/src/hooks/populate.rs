//! Fills memory in steps: before registration nothing holds one large call back, and it could pass
//! the limit. Between steps the reclaimer can register; then the limit holds back each step like a
//! touch.

use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;

use crate::process::agent;
use crate::process::thread::syscall3;

/// Less than the reclaimer leaves free for touches while it sleeps.
const STEP: usize = 1 << 20;

pub fn is_in_steps(len: usize) -> bool {
    len > STEP
}

pub fn advise(addr: usize, len: usize, advice: u32) -> isize {
    in_steps(addr, len, advice, || false)
}

/// Fills a new mapping as MAP_POPULATE, a hint, would; registrable memory only until registration,
/// because later pages would only push others out.
pub fn mapped(addr: usize, len: usize, prot: u32, flags: u32, can_be_registered: bool) {
    // As in the kernel: shared pages stay clean.
    let copies = flags & sys::MAP_TYPE == sys::MAP_PRIVATE && prot & sys::PROT_WRITE != 0;
    let advice = if copies { sys::MADV_POPULATE_WRITE } else { sys::MADV_POPULATE_READ };
    in_steps(addr, len, advice, || can_be_registered && agent::active().is_some());
}

fn in_steps(addr: usize, len: usize, advice: u32, is_over: impl Fn() -> bool) -> isize {
    let is_possible = len.checked_next_multiple_of(PAGE_SIZE).and_then(|len| addr.checked_add(len)).is_some();
    let step = if is_possible { STEP } else { len };
    let mut done = 0;
    while !is_over() {
        let part = (len - done).min(step);
        // SAFETY: changes no bytes; the caller requested this.
        let r = unsafe { syscall3(sys::__NR_madvise, addr + done, part, advice as usize) };
        done += part;
        if r != 0 || done >= len {
            return r;
        }
    }
    0
}
