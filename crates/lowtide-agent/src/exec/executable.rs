//! Whether a file about to be executed has a loader, which preloads this library. Reads a few
//! bytes, on a small stack; unreadable files count as having one.

use core::ffi::{CStr, c_char, c_int};

use linux_raw_sys::general as sys;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::process::thread::{syscall4, syscall6};

const MAX_SCRIPTS: usize = 5;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const EXEC: u16 = 2;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_PIE: u64 = 0x0800_0000;
const MOST_DYNAMIC: u64 = 4096;
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const MACHINE: u16 = 62;

/// Whether execveat (or execve: AT_FDCWD and `flags` 0) would execute a program without a loader or
/// new rights, which a traced program would not get.
pub fn is_static(directory: c_int, path: *const c_char, flags: c_int) -> bool {
    if path.is_null() {
        return false;
    }
    let Some(mut file) = open(directory, path, flags) else { return false };
    for _ in 0..=MAX_SCRIPTS {
        let mut head = [0u8; HEADER * 4];
        let n = read(&file, &mut head, 0);
        if !head[..n].starts_with(b"#!") {
            return is_static_elf(&file, &head[..n]) && !gives_rights(&file);
        }
        // The interpreter's name; the kernel refuses longer ones.
        let line = &mut head[2..];
        let Some(start) = line.iter().position(|c| !matches!(c, b' ' | b'\t')) else { return false };
        let Some(len) = line[start..].iter().position(|c| matches!(c, b' ' | b'\t' | b'\n' | b'\r' | 0)) else {
            return false;
        };
        line[start + len] = 0;
        let Ok(interpreter) = CStr::from_bytes_with_nul(&line[start..=start + len]) else { return false };
        match open(sys::AT_FDCWD, interpreter.as_ptr(), 0) {
            Some(next) => file = next,
            None => return false,
        }
    }
    false
}

fn is_static_elf(file: &OwnedFd, head: &[u8]) -> bool {
    let half = |at: usize| head.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
    if head.len() < HEADER || head[..6] != MAGIC || half(18) != MACHINE || usize::from(half(54)) != PROGRAM_HEADER {
        return false;
    }
    let quad = |bytes: &[u8], at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    let first = quad(head, 32);
    // A position-independent program without a loader is marked as one; otherwise it is a loader.
    let mut is_program = half(16) == EXEC;
    for i in 0..u64::from(half(56)) {
        let mut header = [0u8; PROGRAM_HEADER];
        if read(file, &mut header, first.wrapping_add(i * PROGRAM_HEADER as u64)) < PROGRAM_HEADER {
            return false;
        }
        match u32::from_le_bytes([header[0], header[1], header[2], header[3]]) {
            PT_INTERP => return false,
            PT_DYNAMIC => is_program |= says_program(file, quad(&header, 8), quad(&header, 32)),
            _ => {}
        }
    }
    is_program
}

fn says_program(file: &OwnedFd, offset: u64, size: u64) -> bool {
    let mut entries = [0u8; 16 * 16];
    for at in (0..size.min(MOST_DYNAMIC)).step_by(entries.len()) {
        let n = read(file, &mut entries, offset.wrapping_add(at));
        for entry in entries[..n].chunks_exact(16) {
            let word = |at: usize| entry.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
            if word(0) == DT_FLAGS_1 {
                return word(8) & DF_1_PIE != 0;
            }
        }
    }
    false
}

fn gives_rights(file: &OwnedFd) -> bool {
    let changes_user = rustix::fs::fstat(file).is_ok_and(|stat| stat.st_mode & (sys::S_ISUID | sys::S_ISGID) != 0);
    changes_user || rustix::fs::fgetxattr(file, c"security.capability", &mut [0u8; 64][..]).is_ok_and(|n| n > 0)
}

/// Regular files only.
fn open(directory: c_int, path: *const c_char, flags: c_int) -> Option<OwnedFd> {
    // SAFETY: the kernel checks the path and has written the structure. A descriptor that is the
    // file itself is duplicated.
    let fd = unsafe {
        let mut stat = core::mem::MaybeUninit::<sys::stat>::zeroed();
        let seen = syscall4(
            sys::__NR_newfstatat,
            directory as usize,
            path as usize,
            stat.as_mut_ptr().addr(),
            flags as usize & sys::AT_EMPTY_PATH as usize,
        );
        // Opening other kinds may act or wait.
        if seen < 0 || stat.assume_init().st_mode & sys::S_IFMT != sys::S_IFREG {
            return None;
        }
        if flags as u32 & sys::AT_EMPTY_PATH != 0 && *path == 0 {
            syscall4(sys::__NR_fcntl, directory as usize, sys::F_DUPFD_CLOEXEC as usize, 0, 0)
        } else {
            let flags = sys::O_RDONLY | sys::O_CLOEXEC | sys::O_NONBLOCK;
            syscall4(sys::__NR_openat, directory as usize, path as usize, flags as usize, 0)
        }
    };
    // SAFETY: the kernel has just made it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn read(file: &OwnedFd, to: &mut [u8], at: u64) -> usize {
    // SAFETY: room for the given size.
    let n =
        unsafe { syscall6(sys::__NR_pread64, file.as_raw_fd() as usize, to.as_mut_ptr().addr(), to.len(), at as usize, 0, 0) };
    usize::try_from(n).unwrap_or(0)
}
