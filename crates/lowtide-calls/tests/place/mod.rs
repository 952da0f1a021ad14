//! Memory whose pages can be missing, but for the pieces of a call.

use lowtide_calls::{Arguments, Known, Memory, Piece, each_piece};
use lowtide_sys::uffd::{NEEDED_WITHOUT_EVENTS, Uffd, Wake, Watched};

use crate::skipped;

pub const PAGE: usize = 4096;
const PAGES: usize = 64;
pub const SIZE: usize = PAGES * PAGE;

/// Registered with a userfaultfd that nobody reads: whoever meets a missing page waits for ever, or
/// gets EFAULT in the kernel.
pub struct Place {
    pub base: usize,
    uffd: Uffd,
}

impl Place {
    /// None: the kernel allows no userfaultfd here.
    pub fn new() -> Option<Place> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, protection, flags, -1, 0) }.addr();
        Place::at(base)
    }

    /// In a forked child: the same place, with a userfaultfd of its own.
    pub fn at(base: usize) -> Option<Place> {
        match Uffd::open_for_user_mode(NEEDED_WITHOUT_EVENTS) {
            Ok(uffd) => Some(Place { base, uffd }),
            Err(error) => {
                skipped::skipped(format_args!("a userfaultfd for user mode is not allowed: {error}"));
                None
            }
        }
    }

    pub fn end(&self) -> usize {
        self.base + SIZE
    }

    pub fn contents(&self) -> Vec<u8> {
        // SAFETY: mapped, and all there: `call_with_pieces` ends so.
        unsafe { std::slice::from_raw_parts(self.base as *const u8, SIZE) }.to_vec()
    }

    pub fn fill(&self, bytes: &[u8]) {
        // SAFETY: of this size, and no references exist.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base as *mut u8, SIZE) };
    }

    /// Makes a call while all pages are missing but those of its pieces.
    pub fn call_with_pieces(&self, number: u32, arguments: &Arguments) -> (Known, isize) {
        let mut is_there = [false; PAGES];
        let known = each_piece(number as usize, arguments, &self, &mut |Piece { start, len, .. }| {
            let (start, end) = (start.max(self.base), start.saturating_add(len).min(self.end()));
            if start < end {
                is_there[(start - self.base) / PAGE..(end - self.base).div_ceil(PAGE)].fill(true);
            }
        });
        (known, self.call_with(number, arguments, &is_there))
    }

    /// Makes a call while all pages are missing.
    pub fn call_with_nothing(&self, number: u32, arguments: &Arguments) -> isize {
        self.call_with(number, arguments, &[false; PAGES])
    }

    fn call_with(&self, number: u32, arguments: &Arguments, is_there: &[bool; PAGES]) -> isize {
        let all = self.contents();
        let page = |i: usize| self.base + i * PAGE;
        // SAFETY: this thread alone uses the place, and touches no page while it is missing.
        unsafe {
            self.uffd.register(self.base, SIZE, Watched::Missing).unwrap();
            libc::madvise(self.base as _, SIZE, libc::MADV_DONTNEED);
            let bring_in = |i: usize| {
                self.uffd.copy(page(i), all[i * PAGE..].as_ptr(), PAGE, Wake::Later);
            };
            (0..PAGES).filter(|i| is_there[*i]).for_each(bring_in);
            let result = call(number, arguments);
            (0..PAGES).filter(|i| !is_there[*i]).for_each(bring_in);
            self.uffd.unregister(self.base, SIZE).unwrap();
            result
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it.
        unsafe { libc::munmap(self.base as _, SIZE) };
    }
}

impl Memory for &Place {
    fn read(&self, at: usize, into: &mut [u8]) -> bool {
        let is_here = at >= self.base && at.checked_add(into.len()).is_some_and(|end| end <= self.end());
        if is_here {
            // SAFETY: within the place, all of which is there.
            unsafe { std::ptr::copy_nonoverlapping(at as *const u8, into.as_mut_ptr(), into.len()) };
        }
        is_here
    }
}

pub fn call(number: u32, a: &Arguments) -> isize {
    let result: isize;
    // SAFETY: the tests pass memory of their own, and make no call that changes this process's.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as usize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        )
    };
    result
}
