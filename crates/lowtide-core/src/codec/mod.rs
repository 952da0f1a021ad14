//! Compression of single pages. The C libraries work in memory that they are given and never call malloc: they run inside other
//! people's programs, on threads that the program's allocator knows nothing of.

mod zstd;

use alloc::vec::Vec;
use core::ffi::{c_char, c_int, c_void};

// For its link attributes: the functions are in the library that this crate builds.
use lz4_sys as _;

use crate::vm::{PAGE_SIZE, Page};
use zstd::Zstd;

// lz4-sys lacks these two. Names and types are those of lz4.h.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_size: c_int,
        dest_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// Which compressor a store uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Codec {
    /// LZ4, the fast way.
    #[default]
    Lz4,
    /// zstd at this level.
    Zstd(i32),
}

/// Largest compressed page; what is longer is kept as it is.
pub const MAX_COMPRESSED: usize = PAGE_SIZE / 8 * 7;

/// What one thread needs to compress and decompress pages: 20 KiB of buffers, and address space for zstd, which takes some 100
/// KiB of it once a page is decompressed, and some 300 KiB once one is compressed. Make one per thread and keep it.
#[derive(Debug)]
pub struct Workspace {
    lz4: Vec<u64>,
    zstd: Zstd,
    /// A compressed page.
    pub bytes: Vec<u8>,
}

/// The allocator or the kernel has no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoMemory;

fn zeroed<T: Clone + Default>(len: usize) -> Result<Vec<T>, NoMemory> {
    let mut v = Vec::new();
    v.try_reserve_exact(len).map_err(|_| NoMemory)?;
    // The optimizer must not make one call of `alloc_zeroed` of this: in the agent it does so when the symbol behind that,
    // which nobody else calls, is gone already (thin LTO, rustc 1.95), and the agent can't be loaded then.
    v.resize(len, core::hint::black_box(T::default()));
    Ok(v)
}

impl Workspace {
    /// Allocates the buffers. Nothing that is done with them allocates anything.
    ///
    /// # Errors
    /// When the allocator or the kernel has no memory.
    pub fn new() -> Result<Workspace, NoMemory> {
        // SAFETY: a pure function.
        let state = unsafe { LZ4_sizeofState() } as usize;
        let zstd = Zstd::new().map_err(|_| NoMemory)?;
        Ok(Workspace { lz4: zeroed(state.div_ceil(8))?, zstd, bytes: zeroed(PAGE_SIZE)? })
    }

    /// Whether zstd's compressor has memory, about a megabyte: since a page was compressed by it.
    pub fn has_compressor(&self) -> bool {
        self.zstd.has_compressor()
    }

    /// Gives that memory back to the kernel; it is there again when a page is compressed. False: there was none.
    pub fn forget_compressor(&mut self) -> bool {
        self.zstd.forget_compressor()
    }

    /// Gives back what zstd has taken, for both ways; it is there again when it is needed.
    pub fn forget_contexts(&mut self) {
        self.zstd.forget_contexts();
    }
}

/// Bytes of memory that LZ4 compresses with, at least.
pub const LZ4_STATE: usize = 20 << 10;

/// Compresses a page with LZ4, in memory of the caller's, into the front of `out`, and returns how long it is there; `None` if
/// it does not fit, or if the state is smaller than [`LZ4_STATE`] bytes. What is made depends on the page only.
pub fn lz4_compress(state: &mut [u64], page: &Page, out: &mut [u8]) -> Option<usize> {
    // SAFETY: a pure function.
    if size_of_val(state) < unsafe { LZ4_sizeofState() } as usize {
        return None;
    }
    // SAFETY: the state is as big as LZ4_sizeofState says and aligned to 8; source and destination are as long as is said.
    let n = unsafe {
        LZ4_compress_fast_extState(
            state.as_mut_ptr().cast(),
            page.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            PAGE_SIZE as c_int,
            out.len().min(PAGE_SIZE) as c_int,
            1,
        )
    };
    usize::try_from(n).ok().filter(|n| *n > 0)
}

/// Decompresses what LZ4 made of a page. False if these are not such bytes; `into` then holds garbage.
pub fn lz4_decompress(bytes: &[u8], into: &mut Page) -> bool {
    if bytes.len() > PAGE_SIZE {
        return false;
    }
    // SAFETY: source and destination are as long as is said; the function is safe with any bytes.
    let n = unsafe {
        lz4_sys::LZ4_decompress_safe(bytes.as_ptr().cast(), into.as_mut_ptr().cast(), bytes.len() as c_int, PAGE_SIZE as c_int)
    };
    n == PAGE_SIZE as c_int
}

impl Codec {
    /// Compresses a page into the front of `workspace.bytes` and returns how long it is there; `None` if it does not fit into
    /// [`MAX_COMPRESSED`] bytes.
    pub fn compress(self, page: &Page, workspace: &mut Workspace) -> Option<usize> {
        match self {
            Codec::Lz4 => lz4_compress(&mut workspace.lz4, page, &mut workspace.bytes[..MAX_COMPRESSED]),
            Codec::Zstd(level) => workspace.zstd.compress(level, page, &mut workspace.bytes),
        }
    }

    /// Decompresses the first `len` bytes of `workspace.bytes`. False if they are not a compressed page; `into` then holds
    /// garbage.
    pub fn decompress(self, workspace: &mut Workspace, len: usize, into: &mut Page) -> bool {
        if len > workspace.bytes.len() {
            return false;
        }
        match self {
            Codec::Lz4 => lz4_decompress(&workspace.bytes[..len], into),
            // Whatever the level was.
            Codec::Zstd(_) => workspace.zstd.decompress(&workspace.bytes[..len], into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seed: u8) -> Page {
        core::array::from_fn(|i| if i % 32 == 0 { (i / 32) as u8 ^ seed } else { b"A page of text, with some noise."[i % 32] })
    }

    fn noise() -> Page {
        let mut x = 88_172_645_463_325_252u64;
        core::array::from_fn(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
    }

    #[test]
    fn every_codec_and_level_gives_the_page_back() {
        let mut workspace = Workspace::new().unwrap();
        let levels = [-5, -1, 0, 1, 2, 3, 4, 7, 9, 12, 15, 19, 22].map(Codec::Zstd);
        for codec in levels.into_iter().chain([Codec::Lz4]) {
            for seed in 0..20 {
                let page = text(seed);
                let n = codec.compress(&page, &mut workspace).unwrap();
                assert!(n < 3000, "{codec:?} {n}");
                let mut back = [0; PAGE_SIZE];
                assert!(codec.decompress(&mut workspace, n, &mut back), "{codec:?}");
                assert_eq!(back, page);
            }
            assert_eq!(codec.compress(&noise(), &mut workspace), None);
        }
    }

    #[test]
    fn a_compressor_takes_memory_only_from_its_use_until_it_is_forgotten() {
        let mut workspace = Workspace::new().unwrap();
        let held = |workspace: &Workspace| workspace.zstd.populated_pages() * PAGE_SIZE;
        assert_eq!(held(&workspace), 0);
        assert!(!workspace.has_compressor());
        let n = Codec::Zstd(3).compress(&text(1), &mut workspace).unwrap();
        let with_compressor = held(&workspace);
        assert!(workspace.has_compressor() && workspace.forget_compressor() && !workspace.has_compressor());
        assert_eq!(held(&workspace), 0);
        let mut back = [0; PAGE_SIZE];
        assert!(Codec::Zstd(3).decompress(&mut workspace, n, &mut back) && back == text(1));
        let with_decompressor = held(&workspace);
        assert!(with_decompressor < 128 << 10 && with_compressor > with_decompressor, "{with_decompressor} {with_compressor}");
        assert!(!workspace.has_compressor() && !workspace.forget_compressor(), "there was no compressor");
        assert_eq!(held(&workspace), with_decompressor);
        assert_eq!(Codec::Zstd(3).compress(&text(1), &mut workspace), Some(n));
        workspace.forget_contexts();
        assert_eq!(held(&workspace), 0);
        assert_eq!(Codec::Zstd(3).compress(&text(1), &mut workspace), Some(n));
        assert!(Codec::Zstd(3).decompress(&mut workspace, n, &mut back) && back == text(1));
    }

    #[test]
    fn garbage_is_refused_not_believed() {
        let mut workspace = Workspace::new().unwrap();
        let page = text(1);
        for codec in [Codec::Lz4, Codec::Zstd(1)] {
            let n = codec.compress(&page, &mut workspace).unwrap();
            let mut back = [0; PAGE_SIZE];
            assert!(!codec.decompress(&mut workspace, n - 1, &mut back), "cut off");
            assert!(!codec.decompress(&mut workspace, PAGE_SIZE + 1, &mut back), "longer than the buffer");
            workspace.bytes.copy_from_slice(&noise());
            assert!(!codec.decompress(&mut workspace, PAGE_SIZE, &mut back));
            // Bytes that another thread overwrote half way must do no harm, whatever they decode to.
            for i in 0..2000 {
                let n = codec.compress(&page, &mut workspace).unwrap();
                workspace.bytes[i % n] ^= 1 << (i % 8);
                codec.decompress(&mut workspace, n, &mut back);
            }
        }
    }
}
