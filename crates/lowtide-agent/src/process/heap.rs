//! lowtide's heap in the program: dlmalloc over its own mappings, without the program's malloc.

use core::alloc::{GlobalAlloc, Layout};

use dlmalloc::Dlmalloc;
use lowtide_core::lock::Lock;
use lowtide_core::vm::{self, OnFork};

struct Mappings;

// SAFETY: `alloc` returns fresh zeroed memory with no other user, and nothing is freed.
unsafe impl dlmalloc::Allocator for Mappings {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        // Few and large: the table of own mappings is limited.
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

pub struct Heap(Lock<Dlmalloc<Mappings>>);

impl Heap {
    pub const fn new() -> Heap {
        Heap(Lock::new(Dlmalloc::new_with_allocator(Mappings)))
    }

    /// For a child's copy of a heap in an unknown state: leaks it and begins anew.
    ///
    /// # Safety
    /// As [`Heap::reset_after_fork`]; earlier allocations are never freed here.
    pub unsafe fn begin_anew(&self) {
        // SAFETY: as the caller promises.
        unsafe { self.reset_after_fork() };
        *self.0.lock() = Dlmalloc::new_with_allocator(Mappings);
    }

    /// Frees the lock, whichever thread holds it.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: as the caller promises.
        unsafe { self.0.reset_after_fork() }
    }
}

// SAFETY: dlmalloc answers for the memory, the lock for exclusion.
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
