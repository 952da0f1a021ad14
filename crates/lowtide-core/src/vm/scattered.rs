//! Gives scattered memory back with one system call. Each MADV_DONTNEED interrupts the CPUs of the
//! process's other threads, which takes most of its time. Since Linux 6.16 one `process_madvise` of
//! many pages interrupts them once. Since Linux 6.14 it needs no descriptor of the own process
//! (PIDFD_SELF).

use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general::{__NR_process_madvise, MADV_DONTNEED, PIDFD_SELF_THREAD, iovec};

use super::{Mapping, PAGE_SIZE};

/// Ranges per call.
const AT_ONCE: usize = 128;

/// The kernel or a seccomp filter refuses the call.
static REFUSED: AtomicBool = AtomicBool::new(false);

impl Mapping {
    /// Gives the pages of all `ranges` (offset and length in bytes) back; they read as zero
    /// afterwards.
    ///
    /// # Safety
    /// As [`Mapping::discard`], of each.
    pub unsafe fn discard_all(&self, ranges: impl Iterator<Item = (usize, usize)>) {
        let mut ranges = ranges.peekable();
        let mut batch = arrayvec::ArrayVec::<iovec, AT_ONCE>::new();
        while ranges.peek().is_some() {
            batch.clear();
            for (offset, len) in ranges.by_ref().take(AT_ONCE) {
                debug_assert!(offset.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && offset + len <= self.len);
                batch.push(iovec { iov_base: self.as_ptr().wrapping_add(offset).cast(), iov_len: len as u64 });
            }
            if batch.len() > 1 && discard_together(&batch) {
                continue;
            }
            for range in &batch {
                // SAFETY: the caller's. Giving a range back twice is harmless.
                unsafe { self.discard(range.iov_base.addr() - self.addr(), range.iov_len as usize) };
            }
        }
    }
}

/// False: some are not given back.
fn discard_together(ranges: &[iovec]) -> bool {
    if REFUSED.load(Ordering::Relaxed) {
        return false;
    }
    let bytes: u64 = ranges.iter().map(|range| range.iov_len).sum();
    let done: isize;
    // SAFETY: unused ranges of lowtide's own; the kernel reads the list and clobbers only these
    // registers.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") __NR_process_madvise as isize => done,
            in("rdi") PIDFD_SELF_THREAD as isize, in("rsi") ranges.as_ptr(), in("rdx") ranges.len(),
            in("r10") MADV_DONTNEED as usize, in("r8") 0,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if done < 0 {
        REFUSED.store(true, Ordering::Relaxed);
    }
    done == bytes as isize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{OnFork, map};

    #[test]
    fn scattered_pages_are_given_back_and_no_others() {
        let pages = 3 * AT_ONCE;
        let m = map(2 * pages * PAGE_SIZE, OnFork::Copy).unwrap();
        for refused in [REFUSED.load(Ordering::Relaxed), true] {
            let was = REFUSED.swap(refused, Ordering::Relaxed);
            // SAFETY: the mapping is ours alone.
            let byte = |page: usize| unsafe { &mut *m.as_ptr().add(page * PAGE_SIZE) };
            (0..2 * pages).for_each(|page| *byte(page) = 7);
            // SAFETY: as above, and no reference is left.
            unsafe { m.discard_all((0..pages - 1).map(|i| (2 * i * PAGE_SIZE, PAGE_SIZE))) };
            assert!((0..pages - 1).all(|i| *byte(2 * i) == 0 && *byte(2 * i + 1) == 7), "refused: {refused}");
            assert_eq!((*byte(2 * pages - 2), m.populated_pages()), (7, 2 * pages));
            REFUSED.store(was, Ordering::Relaxed);
            let release = rustix::system::uname().release().to_string_lossy().into_owned();
            let old = ["6.14", "6.15", "6.16", "6.17", "6.18", "6.19", "7."].iter().all(|new| !release.starts_with(new));
            assert!(was <= old, "Linux {release} should do it");
        }
    }
}
