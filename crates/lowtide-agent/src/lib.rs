//! The agent: preloaded by `lowtide run` into every process of a run, it keeps their memory under the limit.
//!
//! `start.rs` is where it all begins. Each process has one reclaimer thread (`reclaimer/`), which watches the limit, adopts
//! memory when it comes near and evicts in the background, and, once memory is adopted, monitor threads on the CPUs where
//! threads miss pages (`monitor.rs`), which serve faults. The program's own threads meet lowtide in two places: at the memory
//! calls of the C library (`hooks.rs`) and at fork (`atfork.rs`). There they run on stacks that may themselves be swapped out,
//! so they take none of lowtide's locks: they ask the reclaimer and wait (`request.rs`).
#![no_std]

extern crate alloc;

mod agent;
mod atfork;
mod beside;
mod broker;
mod changes;
mod clones;
mod code;
mod cpus;
mod descriptors;
mod environment;
mod errno;
mod exec;
mod executable;
#[cfg(feature = "faults")]
mod faults;
mod files;
mod follow;
mod fork_handshake;
mod forked_child;
mod gate;
mod heap;
mod hooks;
mod idle;
mod in_thread;
mod inheritance;
mod kept;
mod long_nap;
mod mark;
mod mlock;
mod monitor;
mod moves;
mod objects;
mod one_shot_fd;
mod other_doors;
mod patch;
mod pid_in_run;
mod populate;
mod reclaimer;
mod remote;
mod request;
mod resident;
mod say;
mod settings_variable;
mod several;
mod skip;
mod start;
mod swap_file;
mod system_calls;
mod thread;
mod thread_end;
mod told;
mod wake;
mod watch;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    use core::fmt::Write;
    let mut line = lowtide_pager::sys::Line::new();
    let _ = write!(line, "internal error: {info}");
    if agent::present() {
        say::fatal(line.bytes());
    }
    say::stop()
}
