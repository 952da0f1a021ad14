//! The descriptors that the program's threads use when they serve their own faults: the userfaultfd and the page map. lowtide's
//! threads have a table of their own (`thread.rs`), so these two are in the program's as well, by the same numbers, just below
//! where it may have any.
//!
//! A program may close what it has not opened, and then the number may become something else's: another process's userfaultfd, by
//! which pages would be installed there. So each is used only after a look that it is still that file ([`has_userfaultfd`],
//! [`has_page_map`]).

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use linux_raw_sys::general as sys;
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::Line;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Resource, getrlimit, pidfd_getfd, pidfd_open};

use crate::agent;
use crate::thread::syscall3;

/// The highest numbers that are looked at: a table with higher ones would take memory.
const MOST: u64 = 1024;
/// A program that may have fewer descriptors than this needs them all.
const LEAST: i32 = 64;
/// `PIDFD_THREAD` (Linux 6.9): of a thread, whose descriptors may be others than the process's.
const OF_A_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(sys::O_EXCL);

/// By which numbers lowtide's threads know them.
static NUMBERS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// Which files they are: device and number of each.
static FILES: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];
/// One of those below.
static STATE: AtomicI32 = AtomicI32::new(ABSENT);

/// The program has none.
const ABSENT: i32 = 0;
/// A thread of it gets them.
const COMING: i32 = 1;
/// It has them.
const THERE: i32 = 2;
/// It can't have them.
const REFUSED: i32 = 3;

/// Gives the pager such numbers, once. By the reclaimer.
///
/// # Errors
/// `MFILE`: the program may have too few.
pub fn choose(pager: &Pager) -> Result<(), Errno> {
    if NUMBERS[0].load(Ordering::Relaxed) >= 0 {
        return Ok(());
    }
    let most = highest();
    if most < LEAST {
        return Err(Errno::MFILE);
    }
    let numbers = pager.raise_descriptors(most - 2)?;
    for (to, number) in NUMBERS.iter().zip(numbers) {
        to.store(number, Ordering::Relaxed);
    }
    STATE.store(ABSENT, Ordering::Relaxed);
    Ok(())
}

/// What a thread of the program may do about its descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// They are there.
    There,
    /// Another thread gets them just now.
    Coming,
    /// They can't be had.
    Refused,
}

/// Sees to it that the program has them. By its threads.
pub fn find() -> Found {
    // Acquire: pairs with the Release below. What was noted of the page map is there.
    match STATE.compare_exchange(ABSENT, COMING, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            let state = if fetch().is_ok() { THERE } else { REFUSED };
            STATE.store(state, Ordering::Release);
            if state == THERE { Found::There } else { Found::Refused }
        }
        Err(THERE) => Found::There,
        Err(COMING) => Found::Coming,
        Err(_) => Found::Refused,
    }
}

/// Whether the userfaultfd is behind its number.
pub fn has_userfaultfd() -> bool {
    is_there(0)
}

/// Whether the page map is behind its number.
pub fn has_page_map() -> bool {
    is_there(1)
}

/// Whether one of them is behind its number.
fn is_there(which: usize) -> bool {
    let file = FILES[which].each_ref().map(|word| word.load(Ordering::Relaxed));
    identity(NUMBERS[which].load(Ordering::Relaxed)) == Some(file)
}

/// In a forked child: what its parent's threads used is closed. `has_files`: in a table of its own.
pub fn reset_after_fork(has_files: bool) {
    STATE.store(ABSENT, Ordering::Relaxed);
    for (which, number) in NUMBERS.iter().enumerate() {
        // The number may be the program's own by now, or may never have become lowtide's.
        if has_files && is_there(which) {
            // SAFETY: a descriptor that the program does not know: its parent's userfaultfd or page map.
            unsafe { syscall3(sys::__NR_close, number.load(Ordering::Relaxed) as usize, 0, 0) };
        }
        number.store(-1, Ordering::Relaxed);
    }
}

/// In a copy of a process that no hook has announced: closes what its parent's threads used, by which it could change that
/// process's memory. It is known by where it is, and by what is beside it.
pub fn close_parents() {
    let most = highest();
    let is = |number: i32, end: &[u8]| {
        let (mut path, mut text) = (Line::new(), [0u8; 64]);
        path.push(b"/proc/self/fd/").number(number as u64);
        rustix::fs::readlinkat_raw(rustix::fs::CWD, path.bytes(), &mut text[..])
            .is_ok_and(|len| text.get(..len).is_some_and(|name| name.ends_with(end)))
    };
    if is(most - 2, b"[userfaultfd]") && is(most - 1, b"/pagemap") {
        for number in [most - 2, most - 1] {
            // SAFETY: as in `reset_after_fork`.
            unsafe { syscall3(sys::__NR_close, number as usize, 0, 0) };
        }
    }
}

/// One more than the highest number that the program may have, of those that are looked at.
fn highest() -> i32 {
    getrlimit(Resource::Nofile).current.unwrap_or(MOST).min(MOST) as i32
}

/// Which file is behind a number.
fn identity(number: i32) -> Option<[u64; 2]> {
    if number < 0 {
        return None;
    }
    // SAFETY: borrowed for the call only; what is not open is an error.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(number) }).ok()?;
    Some([stat.st_dev, stat.st_ino])
}

/// Gets both from lowtide's threads, and puts them where they are to be.
fn fetch() -> Result<(), Errno> {
    let thread = Pid::from_raw(agent::RECLAIMER.load(Ordering::Acquire) as i32).ok_or(Errno::SRCH)?;
    let thread = pidfd_open(thread, OF_A_THREAD)?;
    NUMBERS.iter().zip(&FILES).try_for_each(|(number, file)| {
        let number = number.load(Ordering::Relaxed);
        let fd = pidfd_getfd(&thread, number, PidfdGetfdFlags::empty())?;
        // The next free number from there on: what the program has stays its own. It is closed by exec.
        let placed = fcntl_dupfd_cloexec(&fd, number)?;
        if placed.as_raw_fd() != number {
            return Err(Errno::BUSY);
        }
        let identity = identity(number).ok_or(Errno::BADF)?;
        file.iter().zip(identity).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        // It stays open.
        let _ = placed.into_raw_fd();
        Ok(())
    })
}
