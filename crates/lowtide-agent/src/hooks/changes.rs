//! Whether a program thread may still be in a system call that causes a userfaultfd event.
//!
//! The kernel counts such calls from before their change until the thread learns that its event was
//! read, and installs no page meanwhile. A refused call may stay counted for ever (a shrinking brk
//! over a sealed page).

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use linux_raw_sys::general as sys;
use lowtide_core::kernel_text;
use lowtide_sys::{Line, stat};
use rustix::thread::{Timespec, nanosleep};

use crate::handlers::polling;
use crate::process::{agent, thread};

const MOST: usize = 256;
const WHILE: Timespec = Timespec { tv_sec: 0, tv_nsec: 60_000_000 };

const CALLS: [u32; 13] = [
    sys::__NR_mmap,
    sys::__NR_munmap,
    sys::__NR_mremap,
    sys::__NR_brk,
    sys::__NR_madvise,
    sys::__NR_process_madvise,
    sys::__NR_remap_file_pages,
    sys::__NR_clone,
    sys::__NR_clone3,
    sys::__NR_fork,
    sys::__NR_vfork,
    sys::__NR_io_uring_enter,
    sys::__NR_execve,
];

enum At {
    Call,
    Elsewhere,
    /// Running or waiting for a CPU, with this user time.
    Running(u32),
}

/// True: each thread sleeps in another call, or has been in user mode meanwhile.
pub fn are_over() -> bool {
    let Ok(list) = thread::list() else { return false };
    let mut running = ArrayVec::<(u32, u32), MOST>::new();
    let mut over = true;
    let whole = thread::each(&list, |id| {
        // lowtide's own changes wait to be read.
        if polling::threads().all(|own| own != id) && id != agent::RECLAIMER.load(Ordering::Relaxed) {
            over &= match place(id) {
                At::Call => false,
                At::Elsewhere => true,
                At::Running(ticks) => running.try_push((id, ticks)).is_ok(),
            };
        }
        if over { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if whole.is_err() || !over {
        return false;
    }
    if !running.is_empty() {
        let _ = nanosleep(&WHILE);
    }
    running.into_iter().all(|(id, before)| match place(id) {
        At::Call => false,
        At::Elsewhere => true,
        At::Running(ticks) => ticks != before,
    })
}

fn place(id: u32) -> At {
    let mut path = Line::new();
    path.push(b"/proc/self/task/").number(id.into()).push(b"/syscall");
    let mut text = [0; 256];
    match kernel_text::read(path.bytes(), &mut text) {
        None if !thread::exists(id) => At::Elsewhere,
        None => At::Call,
        Some(text) if text.starts_with(b"running") => thread::stat(id, stat::parse_user_ticks).map_or(At::Call, At::Running),
        // In a fault, not a call.
        Some(text) if text.starts_with(b"-1") => At::Elsewhere,
        Some(text) if CALLS.contains(&(kernel_text::number(text) as u32)) => At::Call,
        Some(_) => At::Elsewhere,
    }
}
