//! What a thread needs to work with a store.

use super::types::StoreError;
use crate::codec::Workspace;
use crate::slot::Entry;

/// What one thread needs to store and load pages: a compressor's memory, and where the thread goes on. Make one per thread and
/// keep it.
#[derive(Debug)]
pub struct Scratch {
    /// The compressor's.
    pub(super) workspace: Workspace,
    /// Where the thread goes on.
    pub(super) ends: Ends,
    /// Its thread may not use devices.
    pub(super) keeps_to_memory: bool,
}

/// The slots behind those that a thread's latest pages got: its next ones are best put there.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// The slot behind the latest page for a device.
    pub on_device: Option<Entry>,
    /// Pages in the slots before `on_device` that wait to be written (`gather.rs`).
    pub gathered: usize,
    /// The slot behind the latest page in the pool.
    pub in_pool: Option<Entry>,
}

impl Scratch {
    /// Allocates what is needed. Nothing that is done with it allocates anything.
    ///
    /// # Errors
    /// `NoMemory` when the allocator or the kernel has none.
    pub fn new() -> Result<Scratch, StoreError> {
        let workspace = Workspace::new().map_err(|_| StoreError::NoMemory)?;
        Ok(Scratch { workspace, ends: Ends::default(), keeps_to_memory: false })
    }

    /// Whether its thread may read no device: what it loads from there is [`StoreError::OnDevice`]. It is to store nothing then.
    pub fn keep_to_memory(&mut self, keeps: bool) {
        self.keeps_to_memory = keeps;
    }

    /// Whether zstd's compressor has memory, about a megabyte: since a page was compressed by it.
    pub fn has_compressor(&self) -> bool {
        self.workspace.has_compressor()
    }

    /// Gives that memory back to the kernel; it is there again when a page is compressed. False: there was none.
    pub fn forget_compressor(&mut self) -> bool {
        self.workspace.forget_compressor()
    }

    /// The same, and the memory of zstd's decompressor, some 100 KiB.
    pub fn forget_contexts(&mut self) {
        self.workspace.forget_contexts();
    }
}
