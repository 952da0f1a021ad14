//! Pages that the kernel refers to without a pin: O_DIRECT reads from NFS, Ceph or 9p, and
//! vmsplice. UFFDIO_MOVE refuses pinned pages but moves these; data that arrives after storing
//! would be lost.
//!
//! Reference counts are hidden, but the kernel heeds them on dropping pages under MADV_FREE: only
//! unreferenced, unwritten ones. MADV_PAGEOUT makes it try at once, without swap. So a stored page
//! is freed and paged out before its word says Swapped; if still there, a MOVE takes it back.
//!
//! Why nothing is lost:
//! 1. No new reference arises: the program's address has no page.
//! 2. Checksums before storing and after MADV_FREE show writes before it.
//! 3. A later writer has a reference, or dirtied the page before dropping it. The kernel checks
//!    both in that order.
//!
//! At 4 us a page this is done only if such file systems are mounted.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::clock::now_us;
use lowtide_sys::present::Kind;
use lowtide_sys::release;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::pagemap::ids::StagingFrame;
use crate::pager::Pager;
use crate::pages::Operation;

/// Interval of reading mounts.
const EVERY_US: u64 = 1_000_000;
/// File systems with direct reads without pins.
const REFER: [&[u8]; 8] = [b"nfs", b"nfs4", b"ceph", b"9p", b"lustre", b"gpfs", b"beegfs", b"panfs"];
/// The same on older kernels; a dotted suffix may follow.
const REFERRED: [&[u8]; 3] = [b"fuse", b"fuseblk", b"virtiofs"];
/// From here on these pin, if not before.
const FUSE_PINS: release::Release = (6, 12, 0);

#[derive(Debug)]
pub(crate) struct References {
    /// Microseconds plus 1; 0: never.
    looked_us: AtomicU64,
    may_be: AtomicBool,
    always: AtomicBool,
}

impl References {
    pub(crate) const fn new() -> References {
        References { looked_us: AtomicU64::new(0), may_be: AtomicBool::new(false), always: AtomicBool::new(false) }
    }
}

impl Pager {
    /// Checks every page from now on.
    pub fn always_heed_references(&self) {
        self.reclaim.references.always.store(true, Ordering::Relaxed);
    }

    /// Whether to check. The caller may open files. Without mounts the last answer holds, or true.
    pub(crate) fn heeds_references(&self) -> bool {
        let (references, now) = (&self.reclaim.references, now_us() + 1);
        let looked = references.looked_us.load(Ordering::Relaxed);
        if looked == 0 || now.saturating_sub(looked) > EVERY_US {
            match mounted(release::running() < FUSE_PINS) {
                Some(may_be) => references.may_be.store(may_be, Ordering::Relaxed),
                None if looked == 0 => references.may_be.store(true, Ordering::Relaxed),
                None => {}
            }
            references.looked_us.store(now, Ordering::Relaxed);
        }
        self.heeds_references_now()
    }

    /// The same without reading the mounts.
    pub(crate) fn heeds_references_now(&self) -> bool {
        self.reclaim.references.may_be.load(Ordering::Relaxed) || self.reclaim.references.always.load(Ordering::Relaxed)
    }
}

impl Operation<'_> {
    /// Drops `asked` frames' pages unless referenced or changed since `sums`; returns those still
    /// present. At most 128 frames, unregistered, with Moving words, so without other users.
    pub(crate) fn drop_unreferenced(&self, frames: &[StagingFrame], sums: &[u64], asked: u128) -> u128 {
        let advise = |which: u128, advice: Advice| {
            self.each_run(frames, which, |at, len, _| {
                // SAFETY: dropped pages are stored, others go back. A failing madvise drops
                // nothing.
                let _ = unsafe { rustix::mm::madvise(at as *mut _, len, advice) };
            });
        };
        advise(asked, Advice::LinuxFree);
        let mut same = asked;
        for i in (0..frames.len()).filter(|i| asked >> i & 1 != 0) {
            // SAFETY: populated, or dropped by the kernel and unregistered: then it reads as zeros.
            if unsafe { sum(self.pages.staging.addr(frames[i])) } != sums[i] {
                same &= !(1 << i);
            }
        }
        advise(same, Advice::LinuxPageOut);
        let mut there = 0;
        self.each_run(frames, asked, |at, len, bits| match self.present().scan_all(at, at + len) {
            Ok(found) => {
                for (start, end, _) in found.kinds().filter(|(.., kind)| *kind != Kind::ZeroPage) {
                    let (first, pages) = ((start - at) / PAGE_SIZE, (end - start) / PAGE_SIZE);
                    there |= mask(pages) << (bits.trailing_zeros() as usize + first);
                }
            }
            Err(_) => there |= bits,
        });
        there
    }

    /// Calls `f` with address, bytes and bits of each run of adjacent frames.
    fn each_run(&self, frames: &[StagingFrame], which: u128, mut f: impl FnMut(usize, usize, u128)) {
        let mut i = 0;
        while i < frames.len() {
            let goes_on = |j: &usize| which >> j & 1 != 0 && frames[*j] == frames[i] + (j - i);
            let n = (i..frames.len()).take_while(goes_on).count();
            if n > 0 {
                f(self.pages.staging.addr(frames[i]), n * PAGE_SIZE, mask(n) << i);
            }
            i += n.max(1);
        }
    }
}

/// Whether one is mounted; `older`: on an older kernel. None: unreadable.
fn mounted(older: bool) -> Option<bool> {
    let file = rustix::fs::open(c"/proc/self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut scan = Scan { older, ..Scan::default() };
    let mut text = [0u8; 1024];
    loop {
        match rustix::io::read(&file, &mut text[..]) {
            Ok(0) => return Some(scan.found),
            Ok(n) => text[..n].iter().for_each(|c| scan.next(*c)),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// The type follows the word "-".
#[derive(Default)]
struct Scan {
    older: bool,
    found: bool,
    is_type: bool,
    word: ArrayVec<u8, 16>,
}

impl Scan {
    fn next(&mut self, c: u8) {
        if c != b' ' && c != b'\n' {
            // (Longer names match nothing.)
            let _ = self.word.try_push(c);
            return;
        }
        let name = self.word.split(|c| *c == b'.').next().unwrap_or_default();
        self.found |= self.is_type && (REFER.contains(&&self.word[..]) || self.older && REFERRED.contains(&name));
        self.is_type = !self.is_type && c == b' ' && self.word[..] == *b"-";
        self.word.clear();
    }
}

/// A page's checksum, not against adversaries.
///
/// # Safety
/// A readable page; devices may write meanwhile.
pub(crate) unsafe fn sum(addr: usize) -> u64 {
    // Four chains: multiplications wait for each other.
    let mut sums = [1u64, 2, 3, 4];
    for at in (addr..addr + PAGE_SIZE).step_by(size_of_val(&sums)) {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: inside the page, aligned.
            let word = unsafe { ((at + i * size_of::<u64>()) as *const u64).read_volatile() };
            *sum = (sum.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    sums.into_iter().fold(0, |all, sum| (all.rotate_left(29) ^ sum).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn mask(n: usize) -> u128 {
    if n >= u128::BITS as usize { u128::MAX } else { (1 << n) - 1 }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec;

    use super::*;

    fn found(text: &str, older: bool) -> bool {
        let mut scan = Scan { older, ..Scan::default() };
        text.bytes().for_each(|c| scan.next(c));
        scan.found
    }

    #[test]
    fn types_of_mounts() {
        let mount = |kind: &str| format!("24 1 0:22 / /nfs rw,relatime shared:2 - {kind} 10.0.0.1:/x rw,vers=3\n");
        let ext4 = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/nfs rw\n";
        assert!(!found(ext4, true));
        for (kind, older, refers) in
            [("nfs", false, true), ("nfs4", true, true), ("9p", false, true), ("nfsd", true, false), ("fuse.x", false, false)]
        {
            assert_eq!(found(&[ext4, &mount(kind)].concat(), older), refers, "{kind}");
        }
        assert!(found(&mount("fuse.sshfs"), true), "of an older kernel");
    }

    #[test]
    fn any_byte_changes_the_sum() {
        let mut page = vec![[0u64; PAGE_SIZE / 8]; 1];
        // SAFETY: a page.
        let of = |page: &[[u64; PAGE_SIZE / 8]]| unsafe { sum(page.as_ptr() as usize) };
        let before = of(&page);
        for i in 0..PAGE_SIZE / 8 {
            page[0][i] ^= 1 << (i % 64);
            assert_ne!(of(&page), before, "{i}");
            page[0][i] ^= 1 << (i % 64);
        }
        (page[0][0], page[0][4]) = (1, 1);
        let one = of(&page);
        (page[0][0], page[0][4], page[0][8]) = (0, 1, 1);
        assert_ne!(of(&page), one, "the same words elsewhere");
        page[0].fill(0);
        assert_eq!(of(&page), before);
    }
}
