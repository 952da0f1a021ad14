//! What a forked child's reclaimer and the thread that forked tell each other: whose child this is, and when it can live
//! without its parent.

use core::sync::atomic::{AtomicU32, Ordering};

use lowtide_pager::sys::Line;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::futex;

use crate::{agent, say, thread};

/// The process that forks: in a child, its parent, also when that is dead by now.
static PARENT: AtomicU32 = AtomicU32::new(0);
/// In a child: 1 once its memory is its own.
static READY: AtomicU32 = AtomicU32::new(0);

/// This process forks. One thread does at a time.
pub fn begin(parent: u32) {
    PARENT.store(parent, Ordering::Relaxed);
}

/// In the child, before it has a reclaimer.
pub fn child_begins() {
    READY.store(0, Ordering::Release);
}

/// In a forked child: its parent, dead or alive.
pub fn parent_of_child() -> Option<Pid> {
    Pid::from_raw(PARENT.load(Ordering::Relaxed) as i32)
}

/// In a forked child: whether its parent's agent, of which this is the reclaimer, still serves it, as far as can be seen.
pub fn parent_serves(reclaimer: u32) -> bool {
    const ESRCH: isize = 3;
    // In a new pid namespace nothing can be seen of it. (Who is the parent there says nothing: with CLONE_PARENT it is another.)
    if rustix::process::getppid().is_none() {
        return true;
    }
    // A process that has ended, or become another program, has no such thread any more. (Signal 0 is none; one of another user
    // may not be asked.)
    let (process, reclaimer) = (PARENT.load(Ordering::Relaxed) as usize, reclaimer as usize);
    // SAFETY: asks, and touches no memory.
    unsafe { thread::syscall3(linux_raw_sys::general::__NR_tgkill, process, reclaimer, 0) != -ESRCH }
}

/// In a forked child that can't serve itself, when its parent has given it all of its memory: it goes on without lowtide, like
/// one that a raw system call made.
pub fn child_is_whole(why: Errno) {
    agent::forget_pager();
    let mut line = Line::new();
    line.push(b"a forked child is not limited, and its memory was brought in whole: lowtide can't work there, error ")
        .number(why.raw_os_error() as u64);
    say::warn(line.bytes());
}

/// The child's reclaimer: the program's thread may go on.
pub fn child_is_ready() {
    // Release: pairs with the Acquire in `take_over`.
    READY.store(1, Ordering::Release);
    let _ = futex::wake(&READY, futex::Flags::PRIVATE, 1);
}

/// In the child, its only thread of the program: waits for [`child_is_ready`].
pub fn wait_until_ready() {
    // Acquire: pairs with the Release in `child_is_ready`, before which the child's memory became its own.
    while READY.load(Ordering::Acquire) == 0 {
        let _ = futex::wait(&READY, futex::Flags::PRIVATE, 0, None);
    }
}
