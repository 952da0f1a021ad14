//! Between a forked child's reclaimer and the forking thread: the parent's identity, and when the
//! child can live without it.

use core::sync::atomic::{AtomicU32, Ordering};

use lowtide_sys::Line;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::futex;

use crate::process::{agent, say, thread};

/// In a child its parent, dead or alive.
static PARENT: AtomicU32 = AtomicU32::new(0);
/// In a child: 1 once its memory is its own.
static READY: AtomicU32 = AtomicU32::new(0);

pub fn begin(parent: u32) {
    PARENT.store(parent, Ordering::Relaxed);
}

pub fn child_begins() {
    READY.store(0, Ordering::Release);
}

pub fn parent_of_child() -> Option<Pid> {
    Pid::from_raw(PARENT.load(Ordering::Relaxed) as i32)
}

/// In a child: whether the parent's reclaimer still runs, if visible.
pub fn parent_serves(reclaimer: u32) -> bool {
    const ESRCH: isize = 3;
    // Invisible from a new pid namespace. (The parent pid proves nothing: CLONE_PARENT.)
    if rustix::process::getppid().is_none() {
        return true;
    }
    // A process that has ended or become another program lacks that thread. Signal 0 only checks,
    // and may be forbidden.
    let (process, reclaimer) = (PARENT.load(Ordering::Relaxed) as usize, reclaimer as usize);
    // SAFETY: a query that touches no memory.
    unsafe { thread::syscall3(linux_raw_sys::general::__NR_tgkill, process, reclaimer, 0) != -ESRCH }
}

/// In a child that can't serve itself and has all of its memory: it goes on without lowtide.
pub fn child_is_whole(why: Errno) {
    agent::forget_pager();
    let mut line = Line::new();
    line.push(b"a forked child is not limited, and its memory was brought in whole: lowtide can't work there, error ")
        .number(why.raw_os_error() as u64);
    say::warn(line.bytes());
}

pub fn child_is_ready() {
    // Release: pairs with the Acquire in `wait_until_ready`.
    READY.store(1, Ordering::Release);
    let _ = futex::wake(&READY, futex::Flags::PRIVATE, 1);
}

pub fn wait_until_ready() {
    // Acquire: pairs with the Release in `child_is_ready`, before which the child's memory became
    // its own.
    while READY.load(Ordering::Acquire) == 0 {
        let _ = futex::wait(&READY, futex::Flags::PRIVATE, 0, None);
    }
}
