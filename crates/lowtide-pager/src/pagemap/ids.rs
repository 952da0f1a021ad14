//! Types for page numbers and staging frames, not for pages' bytes (`lowtide_core::vm::Page`) or
//! the pool's frames.

use core::ops::{Add, AddAssign, Sub};

use lowtide_core::vm::PAGE_SIZE;

/// Page number: address / 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PageNo(usize);

impl PageNo {
    pub const fn new(number: usize) -> PageNo {
        PageNo(number)
    }

    /// For the end of a range, the page behind it.
    pub const fn of(addr: usize) -> PageNo {
        PageNo(addr / PAGE_SIZE)
    }

    /// For a range's end, even within a page.
    pub const fn behind(addr: usize) -> PageNo {
        PageNo(addr.div_ceil(PAGE_SIZE))
    }

    pub const fn addr(self) -> usize {
        self.0 * PAGE_SIZE
    }

    pub const fn number(self) -> usize {
        self.0
    }

    /// For tables, where 0 is none (nothing is mapped at 0).
    pub const fn raw(self) -> u64 {
        self.0 as u64
    }

    pub const fn from_raw(raw: u64) -> Option<PageNo> {
        if raw == 0 { None } else { Some(PageNo(raw as usize)) }
    }

    pub const fn back(self, pages: usize) -> PageNo {
        PageNo(self.0.saturating_sub(pages))
    }

    pub fn up_to(self, end: PageNo) -> impl DoubleEndedIterator<Item = PageNo> + ExactSizeIterator {
        (self.0..end.0).map(PageNo)
    }
}

impl Add<usize> for PageNo {
    type Output = PageNo;
    fn add(self, pages: usize) -> PageNo {
        PageNo(self.0 + pages)
    }
}

impl AddAssign<usize> for PageNo {
    fn add_assign(&mut self, pages: usize) {
        self.0 += pages;
    }
}

impl Sub for PageNo {
    type Output = usize;
    fn sub(self, earlier: PageNo) -> usize {
        self.0 - earlier.0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct StagingFrame(u32);

impl StagingFrame {
    pub const fn new(number: u32) -> StagingFrame {
        StagingFrame(number)
    }

    pub const fn number(self) -> u32 {
        self.0
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }

    pub fn up_to(self, end: StagingFrame) -> impl DoubleEndedIterator<Item = StagingFrame> {
        (self.0..end.0).map(StagingFrame)
    }
}

impl Add<usize> for StagingFrame {
    type Output = StagingFrame;
    fn add(self, frames: usize) -> StagingFrame {
        StagingFrame(self.0 + frames as u32)
    }
}

impl AddAssign<usize> for StagingFrame {
    fn add_assign(&mut self, frames: usize) {
        *self = *self + frames;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn pages_are_numbered_by_their_addresses() {
        let page = PageNo::of(0x7f12_3456_7fff);
        assert_eq!((page.addr(), page.number()), (0x7f12_3456_7000, 0x7_f123_4567));
        assert_eq!(PageNo::behind(0x7001), PageNo::new(8));
        assert_eq!(PageNo::behind(0x7000), PageNo::of(0x7000));
        assert_eq!((page + 3) - page, 3);
        assert_eq!(PageNo::new(2).back(3), PageNo::new(0));
        assert_eq!(page.up_to(page + 2).collect::<Vec<_>>(), [page, page + 1]);
        assert_eq!((PageNo::from_raw(0), PageNo::from_raw(page.raw())), (None, Some(page)));
    }
}
