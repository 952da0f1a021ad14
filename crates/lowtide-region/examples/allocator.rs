//! A region behind another crate's allocator interface: a Vec of `allocator-api2` that is larger than RAM.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use allocator_api2::alloc::{AllocError, Allocator};
use allocator_api2::vec::Vec;
use lowtide_region::{Error, Region, Swap};

/// Gives out a region from its start to its end, and takes nothing back before all of it goes.
struct Bump {
    region: Region,
    used: AtomicUsize,
}

// SAFETY: blocks lie in the region, which stays where it is as long as the allocator lives (only references to it are
// allocators, so it is not moved away under them), and none overlaps another.
unsafe impl Allocator for &Bump {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            // The region begins at a page.
            let start = used.checked_next_multiple_of(layout.align()).ok_or(AllocError)?;
            let end = start.checked_add(layout.size()).filter(|end| *end <= self.region.len()).ok_or(AllocError)?;
            if layout.align() > 4096 {
                return Err(AllocError);
            }
            match self.used.compare_exchange_weak(used, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    // SAFETY: inside the region.
                    let at = unsafe { self.region.as_mut_ptr().add(start) };
                    return NonNull::new(core::ptr::slice_from_raw_parts_mut(at, layout.size())).ok_or(AllocError);
                }
                Err(now) => used = now,
            }
        }
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: Layout) {}
}

fn main() -> Result<(), Error> {
    let region = Region::builder(64 << 20).ram(16 << 20).swap(Swap::Auto).build()?;
    let bump = Bump { region, used: AtomicUsize::new(0) };
    let mut squares: Vec<u64, &Bump> = Vec::with_capacity_in(6 << 20, &bump);
    squares.extend((0..6 << 20).map(|i: u64| i * i));
    assert!(squares.iter().enumerate().all(|(i, square)| *square == (i * i) as u64));
    let stats = bump.region.stats()?;
    assert!(stats.pages_out > 0 && stats.ram_now <= stats.ram_limit + (1 << 20), "{stats:?}");
    println!("{} MiB of squares in {} MiB of RAM", (squares.len() * 8) >> 20, stats.ram_limit >> 20);
    Ok(())
}
