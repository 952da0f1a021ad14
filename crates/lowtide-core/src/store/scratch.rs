//! A thread's memory for a store.

use super::types::StoreError;
use crate::codec::{Choice, Workspace};
use crate::slot::Entry;

/// A compressor's memory, and the thread's position among slots; one per thread.
#[derive(Debug)]
pub struct Scratch {
    pub(super) workspace: Workspace,
    pub(super) choice: Choice,
    pub(super) ends: Ends,
    pub(super) keeps_to_memory: bool,
}

/// The slots behind a thread's latest pages, for its next ones.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub on_device: Option<Entry>,
    /// Waiting pages before `on_device` (`gather.rs`).
    pub gathered: usize,
    pub in_pool: Option<Entry>,
}

impl Scratch {
    /// Allocates everything; later use allocates nothing.
    ///
    /// # Errors
    /// `NoMemory` when the allocator or the kernel has none.
    pub fn new() -> Result<Scratch, StoreError> {
        let workspace = Workspace::new().map_err(|_| StoreError::NoMemory)?;
        Ok(Scratch { workspace, choice: Choice::default(), ends: Ends::default(), keeps_to_memory: false })
    }

    /// Forbids device reads: they return [`StoreError::OnDevice`]. The thread must not store pages
    /// then.
    pub fn keep_to_memory(&mut self, keeps: bool) {
        self.keeps_to_memory = keeps;
    }

    /// Whether zstd's compressor has its memory, about a megabyte.
    pub fn has_compressor(&self) -> bool {
        self.workspace.has_compressor()
    }

    /// Frees that memory until the next use. False: there was none.
    pub fn forget_compressor(&mut self) -> bool {
        self.workspace.forget_compressor()
    }

    /// The same, and some 100 KiB of zstd's decompressor.
    pub fn forget_contexts(&mut self) {
        self.workspace.forget_contexts();
    }
}
