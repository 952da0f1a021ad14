//! A forked child reads pages from its parent's swap files.
//!
//! It opens them through `/proc`, from the parent's reclaimer. If the parent has changed its user
//! or dropped privileges, the child may not: then the parent first leaves them with `lowtide run`.

use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general as sys;
use lowtide_pager::pager::Pager;
use lowtide_sys::Line;
use lowtide_wire::broker::{HAND_ON, INHERIT, TAKE_BACK, of_file};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::capabilities;

use crate::process::thread::syscall3;
use crate::process::{broker, swap_areas};

static HANDED_ON: AtomicBool = AtomicBool::new(false);

const PR_GET_DUMPABLE: usize = 3;
/// Others of the same user may look at this process.
const DUMPABLE: isize = 1;

/// In the parent's reclaimer. If it fails, the child gets all of its memory at once.
pub fn hand_on(pager: &Pager) {
    if child_may_look() {
        return;
    }
    let (Some(operation), Ok(connection)) = (pager.enter(), broker::connect()) else { return };
    operation.store().each_file(&mut |number| {
        // SAFETY: the reclaimer keeps it open as long as the store.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        // Too many: the child gets all of its memory at once.
        let _ = connection.ask(of_file(HAND_ON, number as u32), Some(file));
        HANDED_ON.store(true, Ordering::Relaxed);
    });
}

/// By the parent's reclaimer.
pub fn take_back() {
    if HANDED_ON.swap(false, Ordering::Relaxed)
        && let Ok(connection) = broker::connect()
    {
        let _ = connection.ask(TAKE_BACK, None);
    }
}

fn child_may_look() -> bool {
    // SAFETY: a query that touches no memory.
    let dumpable = unsafe { syscall3(sys::__NR_prctl, PR_GET_DUMPABLE, 0, 0) } == DUMPABLE;
    let of = |pid| capabilities(pid).map(|sets| sets.permitted).ok();
    // A changed root directory may lack /proc. The reclaimer has the process's original privileges.
    dumpable && rustix::fs::stat(c"/proc/self/fd").is_ok() && of(Some(rustix::process::getpid())) == of(None)
}

/// In the child: opens the parent reclaimer's file of this number.
///
/// # Errors
/// Those of open and of `lowtide run`.
pub fn reopen(parent: Pid, parent_reclaimer: u32, number: i32) -> Result<OwnedFd, Errno> {
    let mut path = Line::new();
    path.push(b"/proc/").number(parent.as_raw_nonzero().get() as u64).push(b"/task/").number(u64::from(parent_reclaimer));
    path.push(b"/fd/").number(number as u64).push(b"\0");
    match swap_areas::open_path(path.bytes()) {
        Err(Errno::ACCESS | Errno::PERM | Errno::NOENT) => broker::connect()?.ask_file(of_file(INHERIT, number as u32)),
        other => other,
    }
}
