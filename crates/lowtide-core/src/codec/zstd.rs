//! zstd's contexts in their own mapping: memory only on use. So loading a page never allocates, and
//! processes that only load pages need no compressor memory.

use core::ffi::c_void;
use core::ptr::NonNull;

use rustix::io::Errno;
use zstd_sys::{ZSTD_CCtx, ZSTD_DCtx};

use super::MAX_COMPRESSED;
use crate::vm::Page;
use crate::vm::{self, Mapping, OnFork, PAGE_SIZE};

/// With different memory needs; zstd clamps others.
const LEVELS: core::ops::RangeInclusive<i32> = -7..=22;

#[derive(Debug)]
pub(super) struct Zstd {
    memory: Mapping,
    /// Bytes for the decompressor; the rest is the compressor's.
    front: usize,
    decompressor: Option<NonNull<ZSTD_DCtx>>,
    /// With its level.
    compressor: Option<(i32, NonNull<ZSTD_CCtx>)>,
}

// SAFETY: the contexts lie in memory that the value owns and are used through `&mut` only.
unsafe impl Send for Zstd {}

fn compressor_bytes(level: i32) -> usize {
    // SAFETY: pure functions.
    unsafe { zstd_sys::ZSTD_estimateCCtxSize_usingCParams(zstd_sys::ZSTD_getCParams(level, PAGE_SIZE as u64, 0)) }
}

impl Zstd {
    /// Reserves address space.
    pub(super) fn new() -> Result<Zstd, Errno> {
        // SAFETY: a pure function.
        let front = unsafe { zstd_sys::ZSTD_estimateDCtxSize() }.next_multiple_of(PAGE_SIZE);
        let back = LEVELS.map(compressor_bytes).max().unwrap_or(0);
        Ok(Zstd { memory: vm::map(front + back, OnFork::Copy)?, front, decompressor: None, compressor: None })
    }

    fn compressor(&mut self, level: i32) -> Option<NonNull<ZSTD_CCtx>> {
        match self.compressor {
            Some((made_for, context)) if made_for == level => Some(context),
            _ => {
                let bytes = compressor_bytes(level);
                if self.front + bytes > self.memory.len() {
                    return None;
                }
                // SAFETY: inside the mapping, behind the decompressor, page-aligned, and lives as
                // long as the context; an earlier context is no longer used.
                let context = unsafe {
                    let at: *mut c_void = self.memory.as_ptr().add(self.front).cast();
                    NonNull::new(zstd_sys::ZSTD_initStaticCCtx(at, bytes))?
                };
                self.compressor = Some((level, context));
                Some(context)
            }
        }
    }

    fn decompressor(&mut self) -> Option<NonNull<ZSTD_DCtx>> {
        if self.decompressor.is_none() {
            // SAFETY: as above, at the front of the mapping.
            let context = unsafe { zstd_sys::ZSTD_initStaticDCtx(self.memory.as_ptr().cast(), self.front) };
            self.decompressor = NonNull::new(context);
        }
        self.decompressor
    }

    /// The compressed length; `None` above [`MAX_COMPRESSED`] or the length of `into`.
    pub(super) fn compress(&mut self, level: i32, page: &Page, into: &mut [u8]) -> Option<usize> {
        let context = self.compressor(level)?;
        let most = into.len().min(MAX_COMPRESSED);
        // SAFETY: the context is valid and this thread's; the lengths are those of source and
        // destination.
        let n = unsafe {
            let (to, from) = (into.as_mut_ptr().cast(), page.as_ptr().cast());
            zstd_sys::ZSTD_compressCCtx(context.as_ptr(), to, most, from, PAGE_SIZE, level)
        };
        // Error codes are near the top of the range.
        Some(n).filter(|n| *n <= most)
    }

    /// False if the bytes are invalid; `into` is then garbage.
    pub(super) fn decompress(&mut self, bytes: &[u8], into: &mut Page) -> bool {
        let Some(context) = self.decompressor() else { return false };
        // SAFETY: as above.
        let n = unsafe {
            let (to, from) = (into.as_mut_ptr().cast(), bytes.as_ptr().cast());
            zstd_sys::ZSTD_decompressDCtx(context.as_ptr(), to, PAGE_SIZE, from, bytes.len())
        };
        n == PAGE_SIZE
    }

    #[cfg(test)]
    pub(super) fn populated_pages(&self) -> usize {
        self.memory.populated_pages()
    }

    pub(super) fn has_compressor(&self) -> bool {
        self.compressor.is_some()
    }

    /// False: there was none.
    pub(super) fn forget_compressor(&mut self) -> bool {
        let had = self.compressor.take().is_some();
        if had {
            // SAFETY: only the compressor was there.
            unsafe { self.memory.discard(self.front, self.memory.len() - self.front) }
        }
        had
    }

    pub(super) fn forget_contexts(&mut self) {
        if self.compressor.take().is_some() | self.decompressor.take().is_some() {
            // SAFETY: only the contexts were there.
            unsafe { self.memory.discard(0, self.memory.len()) }
        }
    }
}

impl Drop for Zstd {
    fn drop(&mut self) {
        // SAFETY: the contexts are not used any more.
        unsafe { self.memory.retire() }
    }
}
