//! lowtide's own heap inside the program: dlmalloc over lowtide's own mappings. The program's malloc is never called.

use core::alloc::{GlobalAlloc, Layout};

use dlmalloc::Dlmalloc;
use lowtide_core::lock::Lock;
use lowtide_core::vm::{self, OnFork};

/// Where dlmalloc gets its memory.
struct Mappings;

// SAFETY: `alloc` returns fresh zeroed memory that nobody else uses; nothing is ever given back.
unsafe impl dlmalloc::Allocator for Mappings {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        // Few and large, because the table of own mappings is limited.
        match vm::map(size.max(256 << 10), OnFork::Copy) {
            Ok(m) => (m.as_ptr(), m.len(), 0),
            Err(_) => (core::ptr::null_mut(), 0, 0),
        }
    }
    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        core::ptr::null_mut()
    }
    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }
    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }
    fn can_release_part(&self, _: u32) -> bool {
        false
    }
    fn allocates_zeros(&self) -> bool {
        true
    }
    fn page_size(&self) -> usize {
        vm::PAGE_SIZE
    }
}

/// The allocator of the agent.
pub struct Heap(Lock<Dlmalloc<Mappings>>);

impl Heap {
    /// An empty heap.
    pub const fn new() -> Heap {
        Heap(Lock::new(Dlmalloc::new_with_allocator(Mappings)))
    }

    /// In a child's copy of a heap that may have been about to change: begins anew. What there was is leaked.
    ///
    /// # Safety
    /// As [`Heap::reset_after_fork`], and nobody here frees what was allocated before.
    pub unsafe fn begin_anew(&self) {
        // SAFETY: handed on to the caller.
        unsafe { self.reset_after_fork() };
        *self.0.lock() = Dlmalloc::new_with_allocator(Mappings);
    }

    /// Frees the lock whoever holds it.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: handed on to the caller.
        unsafe { self.0.reset_after_fork() }
    }
}

// SAFETY: dlmalloc answers for the memory; the lock for exclusion.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        #[cfg(feature = "faults")]
        if lowtide_core::faults::fails(lowtide_core::faults::Op::Heap) {
            return core::ptr::null_mut();
        }
        // SAFETY: a layout has a power-of-two alignment.
        unsafe { self.0.lock().malloc(layout.size(), layout.align()) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller got `ptr` from here with this layout.
        unsafe { self.0.lock().free(ptr, layout.size(), layout.align()) }
    }
}
