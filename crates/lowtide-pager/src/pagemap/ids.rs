//! Numbers of pages and of staging frames, each a type of its own: an address is never taken for a page number, nor a frame
//! for a page. Not to be confused with `lowtide_core::vm::Page`, the bytes of a page, nor with the pool's frames.

use core::ops::{Add, AddAssign, Sub};

use lowtide_core::vm::PAGE_SIZE;

/// The number of a page of the program's address space: its address / 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PageNo(usize);

impl PageNo {
    /// The page of this number.
    pub const fn new(number: usize) -> PageNo {
        PageNo(number)
    }

    /// The page that holds `addr`; where `addr` ends a range of whole pages, the one behind the last.
    pub const fn of(addr: usize) -> PageNo {
        PageNo(addr / PAGE_SIZE)
    }

    /// The one behind the last page of a range that ends at `addr`, in the middle of a page or not.
    pub const fn behind(addr: usize) -> PageNo {
        PageNo(addr.div_ceil(PAGE_SIZE))
    }

    /// Where it begins.
    pub const fn addr(self) -> usize {
        self.0 * PAGE_SIZE
    }

    /// As a number.
    pub const fn number(self) -> usize {
        self.0
    }

    /// As it stands in a table in which 0 is no page. (Nothing is ever mapped at address 0.)
    pub const fn raw(self) -> u64 {
        self.0 as u64
    }

    /// The page that stands so in a table; `None` for 0.
    pub const fn from_raw(raw: u64) -> Option<PageNo> {
        if raw == 0 { None } else { Some(PageNo(raw as usize)) }
    }

    /// The page this many pages before this one, or the first of all.
    pub const fn back(self, pages: usize) -> PageNo {
        PageNo(self.0.saturating_sub(pages))
    }

    /// The pages from this one on, without `end`.
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

/// How many pages the other is before this one, which it is not behind.
impl Sub for PageNo {
    type Output = usize;
    fn sub(self, earlier: PageNo) -> usize {
        self.0 - earlier.0
    }
}

/// A frame of the staging area, by its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct StagingFrame(u32);

impl StagingFrame {
    /// The frame of this number.
    pub const fn new(number: u32) -> StagingFrame {
        StagingFrame(number)
    }

    /// As a number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// As a place in a table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The frames from this one on, without `end`.
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
