//! One transfer between pages and a place in a file, by plain positioned reads and writes.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use crate::vm::PAGE_SIZE;
use crate::vm::Page;

/// How often a transfer goes on after the kernel said "not now", or moved less than a page, before that counts as an error.
const PATIENCE: u32 = 100;

/// A file as transfers see it.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// The file's descriptor.
    pub fd: BorrowedFd<'a>,
    /// What goes wrong with it.
    #[cfg(any(test, feature = "faults"))]
    pub faults: Option<&'a crate::faults::Faults>,
}

impl File<'_> {
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
        #[cfg(any(test, feature = "faults"))]
        if let Some(faults) = self.faults {
            return super::faulty::read(faults, self.fd, bytes, offset);
        }
        rustix::io::pread(self.fd, bytes, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
        #[cfg(any(test, feature = "faults"))]
        if let Some(faults) = self.faults {
            return super::faulty::write(faults, self.fd, bytes, offset);
        }
        rustix::io::pwrite(self.fd, bytes, offset)
    }
}

/// Consecutive bytes of a file, and the pages that they come from or go to. With O_DIRECT the pages are page-aligned.
#[derive(Debug)]
pub struct Transfer<'a> {
    /// Offset in the file, in bytes; a multiple of the page size.
    pub offset: u64,
    /// Where to or from.
    pub pages: Pages<'a>,
}

/// The pages of a transfer.
#[derive(Debug)]
pub enum Pages<'a> {
    /// The file is read into these.
    Into(&'a mut [Page]),
    /// Pages that are written to the file.
    From(&'a [Page]),
}

impl Transfer<'_> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.pages {
            Pages::Into(pages) => pages.as_flattened().len(),
            Pages::From(pages) => pages.as_flattened().len(),
        }
    }

    /// Moves all bytes, with as many system calls as the kernel's short counts make necessary.
    ///
    /// # Errors
    /// What the kernel says, `IO` beyond the end of the file; any part may then have been moved.
    pub fn perform(&mut self, file: File<'_>) -> Result<(), Errno> {
        self.go_on(file, Ok(0))
    }

    /// Goes on after a first attempt, made elsewhere, that ended with `first`: the bytes it moved, from the start, or an error.
    ///
    /// # Errors
    /// As [`Transfer::perform`].
    pub fn go_on(&mut self, file: File<'_>, first: Result<usize, Errno>) -> Result<(), Errno> {
        let (mut done, mut patience) = (0, PATIENCE);
        let mut attempt = first;
        loop {
            match attempt {
                // Parts of a page are moved again: with O_DIRECT only whole blocks can be.
                Ok(n) if n >= PAGE_SIZE => done += n / PAGE_SIZE * PAGE_SIZE,
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) if patience > 0 => patience -= 1,
                Ok(_) => return Err(Errno::IO),
                Err(errno) => return Err(errno),
            }
            if done >= self.len() {
                return Ok(());
            }
            attempt = self.attempt(file, done);
            if attempt == Ok(0) {
                return Err(Errno::IO);
            }
        }
    }

    fn attempt(&mut self, file: File<'_>, done: usize) -> Result<usize, Errno> {
        let offset = self.offset + done as u64;
        match &mut self.pages {
            Pages::Into(pages) => file.read(&mut pages.as_flattened_mut()[done..], offset),
            Pages::From(pages) => file.write(&pages.as_flattened()[done..], offset),
        }
    }
}
