//! Pages are put where they are missing: copied, moved, or marked as lost; and the threads that wait for them are woken.

use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl::{UFFDIO_COPY, UFFDIO_WAKE, UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE};
#[cfg(feature = "faults")]
use lowtide_core::faults::Op;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use super::Uffd;
use super::ioctl::ioctl;

// (The kernel's headers, as linux-raw-sys translates them, lack these. The last takes what WRITEPROTECT takes.)
const MOVE: Opcode = opcode::read_write::<sys::uffdio_move>(sys::UFFDIO as u8, sys::_UFFDIO_MOVE as u8);
const POISON: Opcode = opcode::read_write::<sys::uffdio_poison>(sys::UFFDIO as u8, sys::_UFFDIO_POISON as u8);
const RWPROTECT: Opcode = opcode::read_write::<sys::uffdio_writeprotect>(sys::UFFDIO as u8, 9);

/// Without it protection ends, and waiting threads are woken.
const WRITEPROTECT_WP: u64 = 1 << 0;
const RWPROTECT_RWP: u64 = 1 << 0;
const MOVE_DONTWAKE: u64 = 1 << 0;
const MOVE_ALLOW_SRC_HOLES: u64 = 1 << 1;
/// So often a WAKE is tried.
const WAKE_TRIES: usize = 8;

/// When the threads run on that wait for a page that is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// At once.
    Now,
    /// When [`Uffd::wake`] says so.
    Later,
}

/// What a MOVE does about pages that are missing where it takes them from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// Ends there.
    Stop,
    /// Goes on behind them.
    Pass,
}

/// How far a COPY or MOVE came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done.
    pub done: usize,
    /// Why it stopped; None: it is complete. `AGAIN` with nothing done: an event waits to be read.
    pub error: Option<Errno>,
}

impl Uffd {
    /// Puts copies of the `len` bytes at `src` at `dst`, where no pages may be.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes and never missing; the bytes are what the program must see at `dst`.
    pub unsafe fn copy(&self, dst: usize, src: *const u8, len: usize, wake: Wake) -> Progress {
        let mode = if wake == Wake::Later { u64::from(sys::UFFDIO_COPY_MODE_DONTWAKE) } else { 0 };
        let call = |len| {
            let mut arg = sys::uffdio_copy { dst: dst as u64, src: src as u64, len: len as u64, mode, copy: 0 };
            // SAFETY: COPY takes a uffdio_copy; the caller answers for the addresses.
            let result = unsafe { ioctl(self.fd.as_fd(), UFFDIO_COPY, &mut arg) };
            progress(result, arg.copy, len)
        };
        #[cfg(feature = "faults")]
        let call = |len| super::faults::progress(Op::Copy, len, call);
        call(len)
    }

    /// Moves the pages at `src` to `dst`, where no pages may be. Stops at the first page that can't be moved. What is missing
    /// at `src` stays missing at `dst` and is counted as done, if `holes` says so; else it stops there.
    ///
    /// # Safety
    /// The page map says that the pages are on their way: a fault on `src` must find them.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, holes: Holes, wake: Wake) -> Progress {
        let mode =
            if holes == Holes::Pass { MOVE_ALLOW_SRC_HOLES } else { 0 } | if wake == Wake::Later { MOVE_DONTWAKE } else { 0 };
        let call = |len| {
            let mut arg = sys::uffdio_move { dst: dst as u64, src: src as u64, len: len as u64, mode, move_: 0 };
            // SAFETY: MOVE takes a uffdio_move; the caller answers for the addresses.
            let result = unsafe { ioctl(self.fd.as_fd(), MOVE, &mut arg) };
            progress(result, arg.move_, len)
        };
        #[cfg(feature = "faults")]
        let call = |len| super::faults::progress(Op::Move, len, call);
        call(len)
    }

    /// Maps the kernel's zero page at `dst`, where no pages may be, `len` bytes long. Nobody is woken.
    pub fn zero_page(&self, dst: usize, len: usize) -> Progress {
        let range = sys::uffdio_range { start: dst as u64, len: len as u64 };
        let mut arg = sys::uffdio_zeropage { range, mode: u64::from(sys::UFFDIO_ZEROPAGE_MODE_DONTWAKE), zeropage: 0 };
        // SAFETY: ZEROPAGE takes a uffdio_zeropage, and puts zeros where nothing is, which reads as zeros.
        let result = unsafe { ioctl(self.fd.as_fd(), UFFDIO_ZEROPAGE, &mut arg) };
        progress(result, arg.zeropage, len)
    }

    /// Writes to the pages that are in memory in a range wait from now on. Nobody is woken.
    ///
    /// # Errors
    /// `AGAIN`: an event waits to be read. `NOENT`: writes are not watched there.
    pub fn protect(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, WRITEPROTECT_WP)
    }

    /// Ends [`Uffd::protect`], and wakes the threads that wait there.
    ///
    /// # Errors
    /// As there; then nobody is woken.
    pub fn let_write(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, 0)
    }

    fn write_protect(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let range = sys::uffdio_range { start: start as u64, len: len as u64 };
        let mut arg = sys::uffdio_writeprotect { range, mode };
        // SAFETY: WRITEPROTECT takes a uffdio_writeprotect, and changes no bytes.
        unsafe { ioctl(self.fd.as_fd(), UFFDIO_WRITEPROTECT, &mut arg).map(drop) }
    }

    /// Arms the pages that are in memory in a range: from now on the first touch of each is seen by PAGEMAP_SCAN. It costs the
    /// thread a fault inside the kernel, and nobody is told.
    ///
    /// # Errors
    /// `AGAIN`: an event waits to be read. `NOENT`: a part of the range is not registered for accesses; then none is armed.
    pub fn arm(&self, start: usize, len: usize) -> Result<(), Errno> {
        let range = sys::uffdio_range { start: start as u64, len: len as u64 };
        let mut arg = sys::uffdio_writeprotect { range, mode: RWPROTECT_RWP };
        // SAFETY: RWPROTECT takes a range and a mode, as WRITEPROTECT does, and changes no bytes.
        unsafe { ioctl(self.fd.as_fd(), RWPROTECT, &mut arg).map(drop) }
    }

    /// From now on a touch of the missing pages of the range is a SIGBUS (Linux 6.6), until they are dropped. Wakes the threads
    /// that wait for them.
    ///
    /// # Errors
    /// `INVAL`: the kernel is older. `EXIST`: a page is there.
    pub fn poison(&self, start: usize, len: usize) -> Result<(), Errno> {
        let range = sys::uffdio_range { start: start as u64, len: len as u64 };
        let mut arg = sys::uffdio_poison { range, mode: 0, updated: 0 };
        // SAFETY: POISON takes a uffdio_poison. Nothing reads other bytes for it.
        unsafe { ioctl(self.fd.as_fd(), POISON, &mut arg).map(drop) }
    }

    /// Lets the threads that wait for pages of the range try again.
    pub fn wake(&self, start: usize, len: usize) {
        let mut arg = sys::uffdio_range { start: start as u64, len: len as u64 };
        // The kernel refuses no such range. What stands before it (a filter of system calls) may, and a thread that nobody wakes
        // hangs.
        for _ in 0..WAKE_TRIES {
            #[cfg(feature = "faults")]
            if super::faults::refused(Op::Wake).is_some() {
                continue;
            }
            // SAFETY: WAKE takes a uffdio_range and touches no memory.
            if unsafe { ioctl(self.fd.as_fd(), UFFDIO_WAKE, &mut arg) }.is_ok() {
                return;
            }
        }
    }
}

fn progress(result: Result<i32, Errno>, done: i64, len: usize) -> Progress {
    match result {
        Ok(_) => Progress { done: len, error: None },
        // Done in part is reported as AGAIN with the bytes done; the true reason comes when it is tried again.
        Err(_) if done > 0 => Progress { done: done as usize, error: Some(Errno::AGAIN) },
        Err(e) => Progress { done: 0, error: Some(e) },
    }
}
