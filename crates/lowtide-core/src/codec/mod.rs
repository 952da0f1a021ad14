//! Compression of single pages. The C libraries use memory given to them and never call malloc:
//! they run on threads unknown to a foreign program's allocator.

mod choice;
mod shuffle;
mod zstd;

use alloc::vec::Vec;
use core::ffi::{c_char, c_int, c_void};

// For its link attributes: this crate builds the library.
use lz4_sys as _;

use crate::vm::{PAGE_SIZE, Page};
use zstd::Zstd;

pub use choice::{Choice, Packed};

// Missing in lz4-sys; as in lz4.h.
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

/// The compressor of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Codec {
    /// LZ4, the fast one.
    #[default]
    Lz4,
    /// zstd at this level.
    Zstd(i32),
}

/// What happens to a page before its compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Filter {
    /// Nothing.
    #[default]
    None = 0,
    /// Bytes are sorted by their place in words of 8 bytes (`shuffle.rs`).
    Shuffle = 1,
}

impl Filter {
    /// All filters.
    pub const ALL: [Filter; 2] = [Filter::None, Filter::Shuffle];

    /// The filter with this number; `None`: there is none.
    pub fn from_number(number: u8) -> Option<Filter> {
        Filter::ALL.get(usize::from(number)).copied()
    }

    /// The page as the codec gets it.
    pub(crate) fn apply<'a>(self, page: &'a Page, into: &'a mut Page) -> &'a Page {
        match self {
            Filter::None => return page,
            Filter::Shuffle => shuffle::shuffle(page, into),
        }
        into
    }

    /// The page of which `decompress` makes what the codec got; false if that fails, with garbage
    /// in `into`. `filtered` is for what is in between.
    pub(crate) fn undo(self, filtered: &mut Page, into: &mut Page, decompress: impl FnOnce(&mut Page) -> bool) -> bool {
        match self {
            Filter::None => decompress(into),
            Filter::Shuffle => {
                let is_right = decompress(filtered);
                shuffle::unshuffle(filtered, into);
                is_right
            }
        }
    }
}

/// Largest compressed page; longer ones are stored uncompressed.
pub const MAX_COMPRESSED: usize = PAGE_SIZE / 8 * 7;

/// One thread's buffers: 28 KiB, and address space for zstd, of which decompression uses some 100
/// KiB, compression some 300 KiB.
#[derive(Debug)]
pub struct Workspace {
    lz4: Vec<u64>,
    zstd: Zstd,
    /// A filtered page.
    filtered: Vec<u8>,
    /// A compressed page.
    pub bytes: Vec<u8>,
    /// The best one so far, while others are tried.
    best: Vec<u8>,
}

/// The allocator or the kernel has no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoMemory;

fn zeroed<T: Clone + Default>(len: usize) -> Result<Vec<T>, NoMemory> {
    let mut v = Vec::new();
    v.try_reserve_exact(len).map_err(|_| NoMemory)?;
    // The black box prevents a call of `alloc_zeroed`: in the agent, thin LTO (rustc 1.95) has
    // already dropped a symbol behind it, and loading fails.
    v.resize(len, core::hint::black_box(T::default()));
    Ok(v)
}

impl Workspace {
    /// Allocates the buffers; later calls allocate nothing.
    ///
    /// # Errors
    /// Without memory.
    pub fn new() -> Result<Workspace, NoMemory> {
        // SAFETY: a pure function.
        let state = unsafe { LZ4_sizeofState() } as usize;
        let zstd = Zstd::new().map_err(|_| NoMemory)?;
        Ok(Workspace {
            lz4: zeroed(state.div_ceil(8))?,
            zstd,
            filtered: zeroed(PAGE_SIZE)?,
            bytes: zeroed(PAGE_SIZE)?,
            best: zeroed(PAGE_SIZE)?,
        })
    }

    /// Whether zstd's compressor holds memory, about a megabyte.
    pub fn has_compressor(&self) -> bool {
        self.zstd.has_compressor()
    }

    /// Returns the compressor's memory until its next use. False: there was none.
    pub fn forget_compressor(&mut self) -> bool {
        self.zstd.forget_compressor()
    }

    /// Returns the memory of zstd's contexts until their next use.
    pub fn forget_contexts(&mut self) {
        self.zstd.forget_contexts();
    }
}

/// Bytes of state that suffice for LZ4 compression.
pub const LZ4_STATE: usize = 20 << 10;

/// Compresses a page with LZ4 to the front of `out`. Returns its length; `None` if it does not fit,
/// or the state is too small ([`LZ4_STATE`] suffices). The output depends on the page only.
pub fn lz4_compress(state: &mut [u64], page: &Page, out: &mut [u8]) -> Option<usize> {
    // SAFETY: a pure function.
    if size_of_val(state) < unsafe { LZ4_sizeofState() } as usize {
        return None;
    }
    // SAFETY: the state has at least LZ4_sizeofState bytes and alignment 8; source and destination
    // have the given lengths.
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

/// Decompresses a page with LZ4. False if the bytes are invalid; `into` is then garbage.
pub fn lz4_decompress(bytes: &[u8], into: &mut Page) -> bool {
    if bytes.len() > PAGE_SIZE {
        return false;
    }
    // SAFETY: source and destination have the given lengths; any bytes are safe.
    let n = unsafe {
        lz4_sys::LZ4_decompress_safe(bytes.as_ptr().cast(), into.as_mut_ptr().cast(), bytes.len() as c_int, PAGE_SIZE as c_int)
    };
    n == PAGE_SIZE as c_int
}

impl Codec {
    /// Compresses a page to the front of `workspace.bytes`. Returns its length; `None` above
    /// [`MAX_COMPRESSED`].
    pub fn compress(self, page: &Page, workspace: &mut Workspace) -> Option<usize> {
        self.compress_filtered(Filter::None, page, workspace)
    }

    /// The same after a filter.
    pub fn compress_filtered(self, filter: Filter, page: &Page, workspace: &mut Workspace) -> Option<usize> {
        let Workspace { lz4, zstd, filtered, bytes, .. } = workspace;
        let page = filter.apply(page, filtered.first_chunk_mut()?);
        match self {
            Codec::Lz4 => lz4_compress(lz4, page, &mut bytes[..MAX_COMPRESSED]),
            Codec::Zstd(level) => zstd.compress(level, page, bytes),
        }
    }

    /// Decompresses the first `len` bytes of `workspace.bytes`. False if they are invalid; `into`
    /// is then garbage.
    pub fn decompress(self, workspace: &mut Workspace, len: usize, into: &mut Page) -> bool {
        self.decompress_filtered(Filter::None, workspace, len, into)
    }

    /// The same of a page compressed after `filter`.
    pub fn decompress_filtered(self, filter: Filter, workspace: &mut Workspace, len: usize, into: &mut Page) -> bool {
        let Workspace { zstd, filtered, bytes, .. } = workspace;
        let (Some(bytes), Some(filtered)) = (bytes.get(..len), filtered.first_chunk_mut()) else { return false };
        filter.undo(filtered, into, |into| match self {
            Codec::Lz4 => lz4_decompress(bytes, into),
            Codec::Zstd(_) => zstd.decompress(bytes, into),
        })
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
            // Bytes half overwritten by another thread must do no harm.
            for i in 0..2000 {
                let n = codec.compress(&page, &mut workspace).unwrap();
                workspace.bytes[i % n] ^= 1 << (i % 8);
                codec.decompress(&mut workspace, n, &mut back);
            }
        }
    }
}
