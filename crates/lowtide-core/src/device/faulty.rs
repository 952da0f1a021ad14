//! Fault injection for reads and writes of a file.

use alloc::vec::Vec;

use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use crate::faults::{Fault, Faults, Op};
use crate::vm::PAGE_SIZE;

fn error(fault: Fault) -> Option<Errno> {
    match fault {
        Fault::Io => Some(Errno::IO),
        Fault::NoSpace => Some(Errno::NOSPC),
        Fault::Again => Some(Errno::AGAIN),
        Fault::Interrupted => Some(Errno::INTR),
        Fault::Gone => Some(Errno::NODEV),
        _ => None,
    }
}

fn part(fault: Fault, len: usize) -> usize {
    match fault {
        Fault::Page => len.min(PAGE_SIZE),
        Fault::Sector => len.min(512),
        _ => len,
    }
}

/// pread.
pub fn read(faults: &Faults, fd: BorrowedFd<'_>, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let Some(fault) = faults.next(Op::Device) else { return rustix::io::pread(fd, bytes, offset) };
    if let Some(errno) = error(fault) {
        return Err(errno);
    }
    let len = part(fault, bytes.len());
    let n = rustix::io::pread(fd, &mut bytes[..len], offset)?;
    if fault == Fault::Flip {
        bytes[n / 2] ^= 4;
    }
    Ok(n)
}

/// pwrite.
pub fn write(faults: &Faults, fd: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    let Some(fault) = faults.next(Op::Device) else { return rustix::io::pwrite(fd, bytes, offset) };
    if let Some(errno) = error(fault) {
        return Err(errno);
    }
    match fault {
        Fault::Lost => Ok(bytes.len()),
        Fault::Flip | Fault::Swapped => {
            let mut copy = Copy::of(bytes);
            let wrong = copy.bytes();
            if fault == Fault::Flip {
                wrong[bytes.len() / 2] ^= 4;
            } else if wrong.len() >= 2 * PAGE_SIZE {
                let (a, b) = wrong.split_at_mut(PAGE_SIZE);
                a.swap_with_slice(&mut b[..PAGE_SIZE]);
            }
            rustix::io::pwrite(fd, wrong, offset)
        }
        _ => rustix::io::pwrite(fd, &bytes[..part(fault, bytes.len())], offset),
    }
}

/// A fault for other operations.
///
/// # Errors
/// The fault's.
pub fn touch(faults: &Faults) -> Result<(), Errno> {
    faults.next(Op::Device).and_then(error).map_or(Ok(()), Err)
}

#[derive(Clone)]
#[repr(align(4096))]
#[allow(dead_code)] // read by address
struct Aligned([u8; PAGE_SIZE]);

/// A page-aligned copy, for O_DIRECT.
struct Copy(Vec<Aligned>);

impl Copy {
    fn of(bytes: &[u8]) -> Copy {
        Copy(bytes.as_chunks::<PAGE_SIZE>().0.iter().map(|page| Aligned(*page)).collect())
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: an Aligned is a page of bytes and nothing else.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * PAGE_SIZE) }
    }
}
