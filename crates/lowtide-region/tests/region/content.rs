//! Pages whose every word is a function of a seed and of its place.

use lowtide_region::{Delivery, Region};

pub const PAGE: usize = 4096;
pub const MIB: usize = 1 << 20;

/// All ways in which pages come in, as far as this user may have them; in CI nothing is skipped.
pub fn deliveries() -> Vec<Delivery> {
    let monitor = Region::builder(1).ram(16 << 20).delivery(Delivery::Monitor).build();
    let mut all = vec![Delivery::InThread, Delivery::UserMonitor];
    match monitor {
        Ok(_) => all.push(Delivery::Monitor),
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "cannot run here, and CI must not skip: {why}");
            crate::skipped::skipped(format_args!("Delivery::Monitor: {why}"));
        }
    }
    all
}

/// splitmix64.
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The content that belongs to a seed: 0 is zeros; else noise, numbers that compress, or one word.
fn word(seed: u64, i: usize) -> u64 {
    match seed % 3 {
        _ if seed == 0 => 0,
        0 => mix(seed.wrapping_add(i as u64)),
        1 => seed.wrapping_add(i as u64 & 7),
        _ => mix(seed),
    }
}

/// Writes a page.
///
/// # Safety
/// The page is the caller's.
pub unsafe fn write(page: *mut u8, seed: u64) {
    for i in 0..PAGE / 8 {
        // SAFETY: the caller's page.
        unsafe { page.cast::<u64>().add(i).write_volatile(word(seed, i)) };
    }
}

/// Whether a page is what belongs to its seed.
///
/// # Safety
/// The page is mapped, and nobody writes to it.
pub unsafe fn check(page: *const u8, seed: u64) {
    for i in 0..PAGE / 8 {
        // SAFETY: the caller's page.
        let found = unsafe { page.cast::<u64>().add(i).read_volatile() };
        assert!(found == word(seed, i), "page {page:?}, word {i}: {found:#x}, not {:#x} (seed {seed:#x})", word(seed, i));
    }
}

/// Fills a region with pages of the seeds `salt + 1 ..`.
pub fn fill(region: &mut Region, salt: u64) {
    for (i, page) in region.as_mut_slice().chunks_exact_mut(PAGE).enumerate() {
        // SAFETY: a page of the region, which is borrowed.
        unsafe { write(page.as_mut_ptr(), salt + 1 + i as u64) };
    }
}

/// Checks what [`fill`] wrote.
pub fn check_all(region: &Region, salt: u64) {
    for (i, page) in region.as_slice().chunks_exact(PAGE).enumerate() {
        // SAFETY: a page of the region, which is borrowed.
        unsafe { check(page.as_ptr(), salt + 1 + i as u64) };
    }
}

/// What the kernel says of a range of addresses: bytes in memory.
pub fn resident_bytes(addr: usize, len: usize) -> usize {
    use std::os::unix::fs::FileExt;
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entries = vec![0u8; len / PAGE * 8];
    map.read_exact_at(&mut entries, (addr / PAGE * 8) as u64).unwrap();
    entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count() * PAGE
}
