//! A parent's swap files in its forked child, which must read its pages there.
//!
//! The child opens them again through `/proc`, by the parent's reclaimer, which holds them. When the parent has changed its
//! user or given privileges up since it was started, the child may not: then the parent leaves them with `lowtide run` before
//! it forks.

use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general as sys;
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::Line;
use lowtide_pager::sys::broker::{HAND_ON, INHERIT, TAKE_BACK, of_file};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::capabilities;

use crate::thread::syscall3;
use crate::{broker, swap_file};

/// Files have been left with `lowtide run` since they were last taken back.
static HANDED_ON: AtomicBool = AtomicBool::new(false);

const PR_GET_DUMPABLE: usize = 3;
/// `PR_GET_DUMPABLE`: others of the same user may look at this process.
const DUMPABLE: isize = 1;

/// Parent, before a fork, by the reclaimer: makes sure that the child can have the swap files. If they can't be
/// handed on, the child gets all of its memory at once.
pub fn hand_on(pager: &Pager) {
    if child_may_look() {
        return;
    }
    let (Some(operation), Ok(connection)) = (pager.enter(), broker::connect()) else { return };
    operation.store().each_file(&mut |number| {
        // SAFETY: the reclaimer has it open for as long as the store is there.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        // Refused (there are too many): the child gets all of its memory at once.
        let _ = connection.ask(of_file(HAND_ON, number as u32), Some(file));
        HANDED_ON.store(true, Ordering::Relaxed);
    });
}

/// Parent, after a fork, by the reclaimer: its child has the files, or needs them no more.
pub fn take_back() {
    if HANDED_ON.swap(false, Ordering::Relaxed)
        && let Ok(connection) = broker::connect()
    {
        let _ = connection.ask(TAKE_BACK, None);
    }
}

/// Whether a child that is forked now may look at the reclaimer's descriptors.
fn child_may_look() -> bool {
    // SAFETY: asks, and touches no memory.
    let dumpable = unsafe { syscall3(sys::__NR_prctl, PR_GET_DUMPABLE, 0, 0) } == DUMPABLE;
    let of = |pid| capabilities(pid).map(|sets| sets.permitted).ok();
    // Not where the root directory has been changed and there is no /proc. The reclaimer has the privileges that the process
    // began with.
    dumpable && rustix::fs::stat(c"/proc/self/fd").is_ok() && of(Some(rustix::process::getpid())) == of(None)
}

/// Child: opens the file that the parent's reclaimer has under this number.
///
/// # Errors
/// Those of open, or what `lowtide run` says.
pub fn reopen(parent: Pid, parent_reclaimer: u32, number: i32) -> Result<OwnedFd, Errno> {
    let mut path = Line::new();
    path.push(b"/proc/").number(parent.as_raw_nonzero().get() as u64).push(b"/task/").number(u64::from(parent_reclaimer));
    path.push(b"/fd/").number(number as u64).push(b"\0");
    match swap_file::open_path(path.bytes()) {
        Err(Errno::ACCESS | Errno::PERM | Errno::NOENT) => broker::connect()?.ask_file(of_file(INHERIT, number as u32)),
        other => other,
    }
}
