//! A transfer between pages and a file, by plain positioned reads and writes.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use crate::vm::PAGE_SIZE;
use crate::vm::Page;

/// Retries after EAGAIN, EINTR or less than a page.
const PATIENCE: u32 = 100;

#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
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

/// A range of a file, and its pages (page-aligned for O_DIRECT).
#[derive(Debug)]
pub struct Transfer<'a> {
    /// Offset in bytes; a multiple of the page size.
    pub offset: u64,
    pub pages: Pages<'a>,
}

#[derive(Debug)]
pub enum Pages<'a> {
    Into(&'a mut [Page]),
    From(&'a [Page]),
}

impl Transfer<'_> {
    pub fn len(&self) -> usize {
        match &self.pages {
            Pages::Into(pages) => pages.as_flattened().len(),
            Pages::From(pages) => pages.as_flattened().len(),
        }
    }

    /// Moves all bytes, retrying short counts.
    ///
    /// # Errors
    /// The kernel's, `IO` beyond the end of the file; any part may have been moved.
    pub fn perform(&mut self, file: File<'_>) -> Result<(), Errno> {
        self.go_on(file, Ok(0))
    }

    /// Goes on after a first attempt elsewhere: bytes moved from the start, or an error.
    ///
    /// # Errors
    /// As [`Transfer::perform`].
    pub fn go_on(&mut self, file: File<'_>, first: Result<usize, Errno>) -> Result<(), Errno> {
        let (mut done, mut patience) = (0, PATIENCE);
        let mut attempt = first;
        loop {
            match attempt {
                // O_DIRECT needs whole blocks, so parts of a page are moved again.
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
