//! Big zeroed arrays in their own mappings; only touched pages take memory.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

use rustix::io::Errno;

use crate::vm::{self, Mapping, OnFork};

/// All-zero bytes are a valid value, without drop.
///
/// # Safety
/// Both must hold, and its alignment must be at most a page's.
pub unsafe trait Zeroed {}

// SAFETY: a plain integer.
unsafe impl Zeroed for u64 {}
// SAFETY: a plain integer.
unsafe impl Zeroed for AtomicU8 {}
// SAFETY: a plain integer.
unsafe impl Zeroed for AtomicU16 {}
// SAFETY: a plain integer.
unsafe impl Zeroed for AtomicU64 {}

/// An array of `T` in its own mapping; if shared ([`OnFork::Share`]), only of atomics.
#[derive(Debug)]
pub struct Table<T: Zeroed> {
    map: Mapping,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Zeroed> Table<T> {
    /// A table of `len` zero values.
    ///
    /// # Errors
    /// As [`vm::map`].
    pub fn new(len: usize, on_fork: OnFork) -> Result<Table<T>, Errno> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Errno::NOMEM)?;
        Ok(Table { map: vm::map(bytes, on_fork)?, len, values: PhantomData })
    }

    /// Bytes of memory behind the touched pages.
    pub fn populated_bytes(&self) -> usize {
        self.map.populated_pages() * vm::PAGE_SIZE
    }
}

impl<T: Zeroed> Deref for Table<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` values of T (zero is valid) and lives as long as the
        // table.
        unsafe { core::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

impl<T: Zeroed> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.map.as_ptr().cast(), self.len) }
    }
}

impl<T: Zeroed> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: references borrow the table.
        unsafe { self.map.retire() }
    }
}
