//! Compression.

/// Which compressor a store uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Codec {
    /// LZ4, the fast way.
    #[default]
    Lz4,
    /// zstd at this level.
    Zstd(i32),
}

/// The buffers that one thread needs to store and load pages. Make one per thread and keep it.
#[derive(Debug)]
pub struct Scratch {
    _buf: alloc::vec::Vec<u8>,
}

impl Scratch {
    /// Allocates the buffers.
    ///
    /// # Errors
    /// `NoMemory` when the allocator has none.
    pub fn new() -> Result<Scratch, crate::store::StoreError> {
        Ok(Scratch { _buf: alloc::vec::Vec::new() })
    }
}
