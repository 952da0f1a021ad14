//! Changes mapped code that no thread executes, in one of three ways.
//!
//! 1. Through `/proc/self/mem`, as debuggers do: no protection changes, and PR_SET_MDWE or
//!    systemd's MemoryDenyWriteExecute= do not forbid it. Kernels since 6.12 may lack it (Debian's
//!    7.2 does).
//! 2. By a change of protection and back, rehearsed on a spare page: code that stays unexecutable
//!    would crash at its next call.
//! 3. If that is forbidden, by a changed copy of the code, mapped from an unnamed file in its
//!    place: no memory becomes executable that was not mapped so.

use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;
use rustix::fd::AsRawFd;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::process::{Resource, getrlimit};

use crate::process::say;
use crate::process::thread::{syscall3, syscall4, syscall6};

pub const LEN: usize = 14;

#[derive(Clone, Copy)]
pub struct Change {
    pub at: usize,
    pub bytes: [u8; LEN],
}

/// False: none (they overlap, or the system forbids it).
///
/// # Safety
/// The places are readable, executable memory of one mapping; the process has one thread, which
/// executes elsewhere; the new code may stand there.
pub unsafe fn change(changes: &mut [Change]) -> bool {
    changes.sort_unstable_by_key(|change| change.at);
    if changes.windows(2).any(|pair| pair[1].at < pair[0].at + LEN) {
        return false;
    }
    // SAFETY: as the caller promises.
    unsafe { by_file(changes) || by_protection(changes) || by_mapping(changes) }
}

/// # Safety
/// The byte is readable.
pub unsafe fn byte_at(at: usize) -> u8 {
    // SAFETY: as the caller promises. Volatile: the kernel may write there.
    unsafe { (at as *const u8).read_volatile() }
}

/// `changes` are sorted by place. False: nothing was changed.
///
/// # Safety
/// As [`change`]; bytes between changes on a page are readable, and written back: a debugger's
/// breakpoint set meanwhile would be lost.
unsafe fn by_file(changes: &[Change]) -> bool {
    let Ok(mem) = rustix::fs::open(c"/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let (mut before, mut after) = ([0u8; PAGE_SIZE], [0u8; PAGE_SIZE]);
    // Together on each page: a write costs a system call in each process of a run.
    for (i, these) in changes.chunk_by(on_one_page).enumerate() {
        let start = these[0].at;
        let len = these[these.len() - 1].at + LEN - start;
        let (before, after) = (&mut before[..len], &mut after[..len]);
        for (at, byte) in (start..).zip(&mut *before) {
            // SAFETY: readable, as the caller promises.
            *byte = unsafe { byte_at(at) };
        }
        after.copy_from_slice(before);
        for change in these {
            after[change.at - start..][..LEN].copy_from_slice(&change.bytes);
        }
        let written = rustix::io::pwrite(&mem, &*after, start as u64) == Ok(len);
        // Some kernels write nothing or a part without an error: only a read afterwards counts.
        // SAFETY: as above.
        let holds = |bytes: &[u8]| (start..).zip(bytes).all(|(at, byte)| unsafe { byte_at(at) } == *byte);
        if !(written && holds(after)) {
            // The first write reveals a closed way; later ones should not fail.
            if i > 0 || !holds(before) {
                say::fatal(b"the C library's code could be changed in part only");
            }
            return false;
        }
    }
    true
}

/// # Safety
/// As [`change`].
unsafe fn by_protection(changes: &[Change]) -> bool {
    let (start, len) = pages_of(changes);
    if !code_can_be_changed() || !protect(start, len, sys::PROT_READ | sys::PROT_WRITE) {
        return false;
    }
    // One change of protection for all, some 50 pages, without a call to the C library in between.
    for change in changes {
        for (i, byte) in change.bytes.iter().enumerate() {
            // SAFETY: the caller allows this change; the page is writable now.
            unsafe { (change.at as *mut u8).add(i).write_volatile(*byte) };
        }
    }
    if !protect(start, len, sys::PROT_READ | sys::PROT_EXEC) {
        // Against the rehearsal. Going on would crash without a message.
        say::fatal(b"the C library's code can't be made executable again");
    }
    true
}

/// False: nothing was changed. `changes` are sorted by place.
///
/// # Safety
/// As [`change`].
unsafe fn by_mapping(changes: &[Change]) -> bool {
    let (all, len) = pages_of(changes);
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
        return false;
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::EXEC;
    let Ok(file) = rustix::fs::memfd_create(c"lowtide-code", flags) else { return false };
    // Only changed pages are copied: they take memory.
    let parts = || changes.chunk_by(on_one_page).map(pages_of);
    let write = |bytes: &[u8], at: usize| rustix::io::pwrite(&file, bytes, (at - all) as u64) == Ok(bytes.len());
    // SAFETY: readable, as the caller promises, and unchanged meanwhile.
    let page = |start, len| unsafe { core::slice::from_raw_parts(start as *const u8, len) };
    let is_written = parts().all(|(start, len)| write(page(start, len), start))
        && changes.iter().all(|change| write(&change.bytes, change.at));
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if !is_written || rustix::fs::fcntl_add_seals(&file, seals).is_err() {
        return false;
    }
    let map = |at, len: usize, from: usize, flags: u32| {
        let (protection, fd) = ((sys::PROT_READ | sys::PROT_EXEC) as usize, file.as_raw_fd() as usize);
        // SAFETY: at a free place, or over code that the caller lets change, with that change.
        unsafe { syscall6(sys::__NR_mmap, at, len, protection, (sys::MAP_PRIVATE | flags) as usize, fd, from - all) }
    };
    // The rehearsal: MAP_FIXED unmaps first, and a failure after that would leave a hole.
    let elsewhere = map(0, PAGE_SIZE, all, 0);
    if (-4095..0).contains(&elsewhere) {
        return false;
    }
    // SAFETY: made above.
    unsafe { syscall4(sys::__NR_munmap, elsewhere as usize, PAGE_SIZE, 0, 0) };
    for (i, (start, len)) in parts().enumerate() {
        if map(start, len, start, sys::MAP_FIXED) != start as isize {
            // Some refusals (of sealed memory) precede the unmap. A part of the changes is worse
            // than none.
            if i == 0 && is_mapped(start, len) {
                return false;
            }
            say::fatal(b"the C library's code can't be mapped again");
        }
    }
    true
}

fn is_mapped(start: usize, len: usize) -> bool {
    let mut resident = [0u8; 16];
    // SAFETY: writes a byte for each page.
    len / PAGE_SIZE <= resident.len() && unsafe { syscall3(sys::__NR_mincore, start, len, resident.as_mut_ptr() as usize) } == 0
}

fn on_one_page(first: &Change, next: &Change) -> bool {
    first.at / PAGE_SIZE == (next.at + LEN - 1) / PAGE_SIZE
}

fn pages_of(changes: &[Change]) -> (usize, usize) {
    let (low, high) = changes.iter().fold((usize::MAX, 0), |(low, high), change| (low.min(change.at), high.max(change.at)));
    let start = low & !(PAGE_SIZE - 1);
    (start, (high + LEN).next_multiple_of(PAGE_SIZE) - start)
}

pub fn protect(start: usize, len: usize, protection: u32) -> bool {
    // SAFETY: the callers answer for the range.
    unsafe { syscall3(sys::__NR_mprotect, start, len, protection as usize) == 0 }
}

/// Whether private file-mapped code can be made writable and executable again, tried on the
/// program's own file: security modules check the code's origin.
fn code_can_be_changed() -> bool {
    let Ok(file) = rustix::fs::open(c"/proc/self/exe", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let protection = (sys::PROT_READ | sys::PROT_EXEC) as usize;
    let fd = file.as_raw_fd() as usize;
    // SAFETY: a fresh mapping, unknown to other code.
    let page = unsafe { syscall6(sys::__NR_mmap, 0, PAGE_SIZE, protection, sys::MAP_PRIVATE as usize, fd, 0) };
    if (-4095..0).contains(&page) {
        return false;
    }
    let page = page as usize;
    let can = protect(page, PAGE_SIZE, sys::PROT_READ | sys::PROT_WRITE) && {
        // SAFETY: writable, private, and not empty: an ELF header. No thread executes it.
        unsafe { (page as *mut u8).write_volatile((page as *const u8).read_volatile()) };
        protect(page, PAGE_SIZE, sys::PROT_READ | sys::PROT_EXEC)
    };
    // SAFETY: made above.
    unsafe { syscall4(sys::__NR_munmap, page, PAGE_SIZE, 0, 0) };
    can
}
