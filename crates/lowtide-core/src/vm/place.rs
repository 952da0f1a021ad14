//! Places lowtide's mappings far from the program's.
//!
//! The kernel puts a mapping into the highest sufficient hole. A program that has unmapped a part
//! of its reservation may still unmap all of it or move something there (mremap), and would hit
//! lowtide's mapping in that hole.

use core::ffi::c_void;
use core::ptr::null_mut;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::PAGE_SIZE;

/// Distance below the kernel's choice: more than most programs map, inside what ThreadSanitizer
/// allows (from 0x7e8000000000 on).
const BELOW: usize = 384 << 30;
/// Bytes for lowtide's mappings from there up.
const ROOM: usize = 256 << 30;
/// Bytes between tries after a taken address.
const STRIDE: usize = 16 << 30;
const TRIES: usize = 16;

#[derive(Debug)]
pub(super) struct Place {
    next: usize,
    end: usize,
}

impl Place {
    pub(super) const UNKNOWN: Place = Place { next: 0, end: 0 };

    /// Maps `len` bytes, inaccessible. Without room, or before Linux 4.17 (no MAP_FIXED_NOREPLACE),
    /// the kernel chooses the address.
    ///
    /// # Errors
    /// `NOMEM` when the kernel refuses.
    pub(super) fn map(&mut self, len: usize, flags: MapFlags) -> Result<*mut c_void, Errno> {
        if len <= ROOM {
            if self.next + len > self.end {
                self.move_on()?;
            }
            if let Some(at) = self.take(len, flags) {
                return Ok(at);
            }
        }
        // SAFETY: a fresh anonymous mapping aliases nothing.
        unsafe { mmap_anonymous(null_mut(), len, ProtFlags::empty(), flags) }
    }

    fn move_on(&mut self) -> Result<(), Errno> {
        let kernels = of_the_kernels_choice()?;
        let top = if self.end == 0 { kernels } else { kernels.min(self.end.saturating_sub(ROOM)) };
        let start = top.saturating_sub(BELOW);
        (self.next, self.end) = (start, start + ROOM);
        Ok(())
    }

    fn take(&mut self, len: usize, flags: MapFlags) -> Option<*mut c_void> {
        for _ in 0..TRIES {
            if self.next == 0 || self.next + len > self.end {
                return None;
            }
            let at = self.next as *mut c_void;
            // SAFETY: it replaces nothing.
            match unsafe { mmap_anonymous(at, len, ProtFlags::empty(), flags | MapFlags::FIXED_NOREPLACE) } {
                // Before Linux 4.17 the address is only a hint.
                Ok(found) => {
                    self.next += if found == at { len } else { 0 };
                    return Some(found);
                }
                Err(Errno::EXIST) => self.next += STRIDE,
                Err(_) => return None,
            }
        }
        None
    }
}

fn of_the_kernels_choice() -> Result<usize, Errno> {
    // SAFETY: a fresh mapping of this thread's.
    unsafe {
        let at = mmap_anonymous(null_mut(), PAGE_SIZE, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?;
        munmap(at, PAGE_SIZE)?;
        Ok(at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

    #[test]
    fn a_hole_of_the_programs_stays_one() {
        let len = 64 * PAGE_SIZE;
        // SAFETY: a mapping of this test's own, whose middle it unmaps.
        let reserved = unsafe {
            let reserved = mmap_anonymous(null_mut(), 3 * len, ProtFlags::empty(), FLAGS).unwrap() as usize;
            munmap((reserved + len) as *mut c_void, len).unwrap();
            reserved
        };
        let mut place = Place::UNKNOWN;
        for _ in 0..100 {
            let at = place.map(len, FLAGS).unwrap() as usize;
            assert!(at.abs_diff(reserved) > 64 << 30, "{at:#x} beside {reserved:#x}");
        }
    }

    #[test]
    fn what_is_taken_is_passed_over_and_left_as_it_is() {
        let mut place = Place::UNKNOWN;
        let first = place.map(PAGE_SIZE, FLAGS).unwrap() as usize;
        let next = (first + PAGE_SIZE) as *mut c_void;
        // SAFETY: an empty address, written inside the mapping.
        unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let _ = mmap_anonymous(next, PAGE_SIZE, prot, FLAGS | MapFlags::FIXED_NOREPLACE).map(|at| at.cast::<u8>().write(7));
            assert!(place.map(PAGE_SIZE, FLAGS).unwrap() as usize > next as usize);
            assert_eq!(next.cast::<u8>().read(), 7);
        }
    }

    #[test]
    fn without_room_it_moves_on_below() {
        let mut place = Place::UNKNOWN;
        let first = place.map(PAGE_SIZE, FLAGS).unwrap() as usize;
        place.next = place.end - PAGE_SIZE;
        for _ in 0..2 {
            let at = place.map(2 * PAGE_SIZE, FLAGS).unwrap() as usize;
            assert!(at < first && first - at < 2 * BELOW, "{at:#x}, {first:#x}");
        }
    }

    #[test]
    fn where_no_room_is_the_kernel_says_where() {
        for (mut place, len) in [(Place { next: 0, end: ROOM }, PAGE_SIZE), (Place::UNKNOWN, ROOM + PAGE_SIZE)] {
            let before = (place.next, place.end);
            let at = place.map(len, FLAGS).unwrap() as usize;
            assert!(at > ROOM && (place.next, place.end) == before, "{at:#x}, {place:?}");
            // SAFETY: this test's alone.
            unsafe { munmap(at as *mut c_void, len).unwrap() };
        }
    }
}
