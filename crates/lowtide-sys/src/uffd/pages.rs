//! Fills missing pages and wakes their threads.

use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl::{UFFDIO_COPY, UFFDIO_WAKE, UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE};
#[cfg(feature = "faults")]
use lowtide_core::faults::Op;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use super::Uffd;
use super::ioctl::ioctl;

// linux-raw-sys lacks these.
const MOVE: Opcode = opcode::read_write::<sys::uffdio_move>(sys::UFFDIO as u8, sys::_UFFDIO_MOVE as u8);
const POISON: Opcode = opcode::read_write::<sys::uffdio_poison>(sys::UFFDIO as u8, sys::_UFFDIO_POISON as u8);

/// Clear: unprotects and wakes.
const WRITEPROTECT_WP: u64 = 1 << 0;
const MOVE_DONTWAKE: u64 = 1 << 0;
const MOVE_ALLOW_SRC_HOLES: u64 = 1 << 1;
const WAKE_TRIES: usize = 8;

/// When waiting threads continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// At once.
    Now,
    /// At [`Uffd::wake`].
    Later,
}

/// A MOVE's reaction to missing source pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// Stops.
    Stop,
    /// Skips them.
    Pass,
}

/// Result of a COPY or MOVE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done.
    pub done: usize,
    /// None: complete. `AGAIN` with nothing done: an event is pending.
    pub error: Option<Errno>,
}

impl Uffd {
    /// Copies `len` bytes to missing pages at `dst`.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes and never missing; they are what the program must see at
    /// `dst`.
    pub unsafe fn copy(&self, dst: usize, src: *const u8, len: usize, wake: Wake) -> Progress {
        let mode = if wake == Wake::Later { u64::from(sys::UFFDIO_COPY_MODE_DONTWAKE) } else { 0 };
        let call = |len| {
            let mut arg = sys::uffdio_copy { dst: dst as u64, src: src as u64, len: len as u64, mode, copy: 0 };
            // SAFETY: a uffdio_copy, with the caller's addresses.
            let result = unsafe { ioctl(self.fd.as_fd(), UFFDIO_COPY, &mut arg) };
            progress(result, arg.copy, len)
        };
        #[cfg(feature = "faults")]
        let call = |len| super::faults::progress(Op::Copy, len, call);
        call(len)
    }

    /// Moves pages to missing pages at `dst`, up to the first immovable one. Passed holes count as
    /// done.
    ///
    /// # Safety
    /// The page map says that the pages are moving, so that faults on `src` find them.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, holes: Holes, wake: Wake) -> Progress {
        let mode =
            if holes == Holes::Pass { MOVE_ALLOW_SRC_HOLES } else { 0 } | if wake == Wake::Later { MOVE_DONTWAKE } else { 0 };
        let call = |len| {
            let mut arg = sys::uffdio_move { dst: dst as u64, src: src as u64, len: len as u64, mode, move_: 0 };
            // SAFETY: a uffdio_move, with the caller's addresses.
            let result = unsafe { ioctl(self.fd.as_fd(), MOVE, &mut arg) };
            progress(result, arg.move_, len)
        };
        #[cfg(feature = "faults")]
        let call = |len| super::faults::progress(Op::Move, len, call);
        call(len)
    }

    /// Maps zero pages, waking no thread.
    pub fn zero_page(&self, dst: usize, len: usize) -> Progress {
        let range = sys::uffdio_range { start: dst as u64, len: len as u64 };
        let mut arg = sys::uffdio_zeropage { range, mode: u64::from(sys::UFFDIO_ZEROPAGE_MODE_DONTWAKE), zeropage: 0 };
        // SAFETY: a uffdio_zeropage; missing pages read as zeros.
        let result = unsafe { ioctl(self.fd.as_fd(), UFFDIO_ZEROPAGE, &mut arg) };
        progress(result, arg.zeropage, len)
    }

    /// Write-protects present pages.
    ///
    /// # Errors
    /// `AGAIN`: an event is pending. `NOENT`: not registered for writes.
    pub fn protect(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, WRITEPROTECT_WP)
    }

    /// Ends [`Uffd::protect`] and wakes threads.
    ///
    /// # Errors
    /// As there, waking no thread.
    pub fn let_write(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, 0)
    }

    fn write_protect(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let range = sys::uffdio_range { start: start as u64, len: len as u64 };
        let mut arg = sys::uffdio_writeprotect { range, mode };
        // SAFETY: a uffdio_writeprotect; changes no bytes.
        unsafe { ioctl(self.fd.as_fd(), UFFDIO_WRITEPROTECT, &mut arg).map(drop) }
    }

    /// Makes missing pages raise SIGBUS (Linux 6.6) and wakes threads.
    ///
    /// # Errors
    /// `INVAL`: older kernel. `EXIST`: a page is present.
    pub fn poison(&self, start: usize, len: usize) -> Result<(), Errno> {
        let range = sys::uffdio_range { start: start as u64, len: len as u64 };
        let mut arg = sys::uffdio_poison { range, mode: 0, updated: 0 };
        // SAFETY: a uffdio_poison; exposes no bytes.
        unsafe { ioctl(self.fd.as_fd(), POISON, &mut arg).map(drop) }
    }

    /// Wakes threads that wait for the range.
    pub fn wake(&self, start: usize, len: usize) {
        let mut arg = sys::uffdio_range { start: start as u64, len: len as u64 };
        // Only a seccomp filter could refuse, and a thread not woken hangs.
        for _ in 0..WAKE_TRIES {
            #[cfg(feature = "faults")]
            if super::faults::refused(Op::Wake).is_some() {
                continue;
            }
            // SAFETY: a uffdio_range; touches no memory.
            if unsafe { ioctl(self.fd.as_fd(), UFFDIO_WAKE, &mut arg) }.is_ok() {
                return;
            }
        }
    }
}

fn progress(result: Result<i32, Errno>, done: i64, len: usize) -> Progress {
    match result {
        Ok(_) => Progress { done: len, error: None },
        // AGAIN after partial success; a retry tells the reason.
        Err(_) if done > 0 => Progress { done: done as usize, error: Some(Errno::AGAIN) },
        Err(e) => Progress { done: 0, error: Some(e) },
    }
}
