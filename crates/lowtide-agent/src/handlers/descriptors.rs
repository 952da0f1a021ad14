//! The userfaultfd and page map in the program's descriptor table, for threads that serve their own
//! faults. Both have the same numbers as in the table of lowtide's threads, at the top of the
//! program's range.
//!
//! A program may close them and reuse the numbers: pages could be installed by another process's
//! userfaultfd. So each use first checks the file ([`has_userfaultfd`], [`has_page_map`]).

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use linux_raw_sys::general as sys;
use lowtide_pager::pager::Pager;
use lowtide_sys::Line;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Resource, getrlimit, pidfd_getfd, pidfd_open};

use crate::process::agent;
use crate::process::thread::syscall3;

/// Higher numbers would make the table take memory.
const MOST: u64 = 1024;
/// A program with a lower limit needs them all.
const LEAST: i32 = 64;
/// `PIDFD_THREAD` (Linux 6.9): the thread's descriptors may differ from the process's.
const OF_A_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(sys::O_EXCL);

static NUMBERS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// Device and inode of each.
static FILES: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];
static STATE: AtomicI32 = AtomicI32::new(ABSENT);

const ABSENT: i32 = 0;
const COMING: i32 = 1;
const THERE: i32 = 2;
const REFUSED: i32 = 3;

/// Moves the pager's descriptors to these numbers, once. For the reclaimer.
///
/// # Errors
/// `MFILE`: the program's limit is too low.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    There,
    Coming,
    Refused,
}

pub fn find() -> Found {
    // Acquire: pairs with the Release below. The page map's identity is set.
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

pub fn has_userfaultfd() -> bool {
    is_there(0)
}

pub fn has_page_map() -> bool {
    is_there(1)
}

fn is_there(which: usize) -> bool {
    let file = FILES[which].each_ref().map(|word| word.load(Ordering::Relaxed));
    identity(NUMBERS[which].load(Ordering::Relaxed)) == Some(file)
}

/// In a forked child. `has_files`: it has its own table.
pub fn reset_after_fork(has_files: bool) {
    STATE.store(ABSENT, Ordering::Relaxed);
    for (which, number) in NUMBERS.iter().enumerate() {
        if has_files && is_there(which) {
            // SAFETY: the parent's userfaultfd or page map, unknown to the program.
            unsafe { syscall3(sys::__NR_close, number.load(Ordering::Relaxed) as usize, 0, 0) };
        }
        number.store(-1, Ordering::Relaxed);
    }
}

/// In an unannounced copy: closes its parent's, by which it could change the parent's memory.
/// Recognised by number and as a pair.
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

fn highest() -> i32 {
    getrlimit(Resource::Nofile).current.unwrap_or(MOST).min(MOST) as i32
}

fn identity(number: i32) -> Option<[u64; 2]> {
    if number < 0 {
        return None;
    }
    // SAFETY: borrowed for the call only; a closed number gives an error.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(number) }).ok()?;
    Some([stat.st_dev, stat.st_ino])
}

fn fetch() -> Result<(), Errno> {
    let thread = Pid::from_raw(agent::RECLAIMER.load(Ordering::Acquire) as i32).ok_or(Errno::SRCH)?;
    let thread = pidfd_open(thread, OF_A_THREAD)?;
    NUMBERS.iter().zip(&FILES).try_for_each(|(number, file)| {
        let number = number.load(Ordering::Relaxed);
        let fd = pidfd_getfd(&thread, number, PidfdGetfdFlags::empty())?;
        // Takes a free number at or above this: the program's own files stay. exec closes it.
        let placed = fcntl_dupfd_cloexec(&fd, number)?;
        if placed.as_raw_fd() != number {
            return Err(Errno::BUSY);
        }
        let identity = identity(number).ok_or(Errno::BADF)?;
        file.iter().zip(identity).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        let _ = placed.into_raw_fd();
        Ok(())
    })
}
