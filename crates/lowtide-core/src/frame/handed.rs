//! Which frames are handed out: rejects frees of others.

use rustix::io::Errno;

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::NotHandedOut;
use crate::table::Table;
use crate::vm::OnFork;

/// A byte per frame, so neighbours change without lock or read-modify-write. The lists' locks order
/// allocation and free; only two threads that free the same frame at once may both succeed.
#[derive(Debug)]
pub(super) struct Handed(Table<AtomicU8>);

impl Handed {
    pub(super) fn new(frames: usize) -> Result<Handed, Errno> {
        Ok(Handed(Table::new(frames, OnFork::Copy)?))
    }

    /// The frames exist.
    #[inline]
    pub(super) fn set(&self, start: u32, n: u32) {
        let bytes = &self.0[start as usize..start as usize + n as usize];
        debug_assert!(all(bytes, 0), "frames handed out twice");
        fill(bytes, 1);
    }

    #[inline]
    pub(super) fn clear(&self, start: u32, n: u32) -> Result<(), NotHandedOut> {
        let bytes = self.0.get(start as usize..start as usize + n as usize).ok_or(NotHandedOut)?;
        if !all(bytes, 1) {
            return Err(NotHandedOut);
        }
        fill(bytes, 0);
        Ok(())
    }

    /// The frame exists. For checks.
    pub(super) fn is_handed(&self, frame: u32) -> bool {
        self.0[frame as usize].load(Relaxed) != 0
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.0.populated_bytes()
    }
}

#[inline]
fn all(bytes: &[AtomicU8], value: u8) -> bool {
    bytes.iter().all(|b| b.load(Relaxed) == value)
}

#[inline]
fn fill(bytes: &[AtomicU8], value: u8) {
    bytes.iter().for_each(|b| b.store(value, Relaxed));
}
