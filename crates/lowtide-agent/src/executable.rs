//! What kind of program a file is that is about to be executed: whether it has a loader, which preloads this library. A few
//! bytes of it are read, on a small stack; what can't be read is taken to have one.

use core::ffi::{CStr, c_char, c_int};

use linux_raw_sys::general as sys;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::thread::{syscall4, syscall6};

/// How many scripts may be each other's interpreter, as in the kernel.
const MAX_SCRIPTS: usize = 5;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const PT_INTERP: u32 = 3;
/// x86-64, of 64 bits, with the lowest byte first.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const MACHINE: u16 = 62;

/// Whether the file that execveat (or execve: `directory` is AT_FDCWD and `flags` 0) would execute has no loader.
pub fn is_static(directory: c_int, path: *const c_char, flags: c_int) -> bool {
    if path.is_null() {
        return false;
    }
    let Some(mut file) = open(directory, path, flags) else { return false };
    for _ in 0..=MAX_SCRIPTS {
        let mut head = [0u8; HEADER * 4];
        let n = read(&file, &mut head, 0);
        if !head[..n].starts_with(b"#!") {
            return is_static_elf(&file, &head[..n]);
        }
        // Up to the first blank or the end of the line; a longer name is none that the kernel takes.
        let line = &mut head[2..n];
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
    for i in 0..u64::from(half(56)) {
        let mut header = [0u8; PROGRAM_HEADER];
        if read(file, &mut header, first.wrapping_add(i * PROGRAM_HEADER as u64)) < PROGRAM_HEADER {
            return false;
        }
        if header[..4] == PT_INTERP.to_le_bytes() {
            return false;
        }
    }
    true
}

/// Opens what is to be executed, for reading.
fn open(directory: c_int, path: *const c_char, flags: c_int) -> Option<OwnedFd> {
    let flag = sys::O_RDONLY | sys::O_CLOEXEC | sys::O_NONBLOCK;
    let is_itself = flags as u32 & sys::AT_EMPTY_PATH != 0;
    // SAFETY: the kernel checks the path. A descriptor that is itself the file is used by a copy.
    let fd = unsafe {
        if is_itself && *path == 0 {
            syscall4(sys::__NR_fcntl, directory as usize, sys::F_DUPFD_CLOEXEC as usize, 0, 0)
        } else {
            syscall4(sys::__NR_openat, directory as usize, path as usize, flag as usize, 0)
        }
    };
    // SAFETY: the kernel has just made it for us.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// As much as there is.
fn read(file: &OwnedFd, to: &mut [u8], at: u64) -> usize {
    // SAFETY: room for as many bytes as are said.
    let n =
        unsafe { syscall6(sys::__NR_pread64, file.as_raw_fd() as usize, to.as_mut_ptr().addr(), to.len(), at as usize, 0, 0) };
    usize::try_from(n).unwrap_or(0)
}
