//! The agent: preloaded by `lowtide run` into every process of a run, it keeps their memory under
//! the limit.
//!
//! Start at `start.rs`. One reclaimer thread per process (`reclaimer/`) watches the limit,
//! registers memory near it and evicts; fault handlers (`handlers/`) serve faults on the CPUs
//! where threads miss pages. The program's threads meet lowtide in the C library's memory calls
//! (`hooks/`) and in fork (`fork/`). Their stacks may be swapped out, so they take none of
//! lowtide's locks: they ask the reclaimer and wait (`reclaimer/request.rs`).
#![no_std]

extern crate alloc;

mod exec;
#[cfg(feature = "faults")]
mod faults;
mod fork;
mod handlers;
mod hooks;
mod process;
mod reclaimer;
mod start;

#[global_allocator]
static HEAP: process::heap::Heap = process::heap::Heap::new();

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    use core::fmt::Write;
    let mut line = lowtide_sys::Line::new();
    let _ = write!(line, "internal error: {info}");
    if process::agent::present() {
        process::say::fatal(line.bytes());
    }
    process::say::stop()
}
