//! Error of the kernel's count of a process's memory.
//!
//! Since Linux 6.2 each CPU counts pages in batches, and `/proc/PID/statm` omits pending batches
//! until "mm: fix the inaccurate memory statistics issue for users" (82241a83cd15; Linux 6.16,
//! 6.15.7, 6.12.39). A distribution may have backported it; then the correction is needless.

use lowtide_core::percpu;
use lowtide_core::vm::PAGE_SIZE;

use super::release::{self, Release};

/// Versions with exact counts, for messages.
pub const EXACT: &str = "6.16, 6.15.7 or 6.12.39";

fn counts_exactly(kernel: Release) -> bool {
    kernel < (6, 2, 0) || release::has(kernel, (6, 16, 0), &[(6, 15, 7), (6, 12, 39)])
}

/// Most bytes by which a count can be off with `cpus` CPUs.
pub fn may_be_off(kernel: Release, cpus: u32) -> u64 {
    if counts_exactly(kernel) {
        return 0;
    }
    let cpus = u64::from(cpus);
    // `percpu_counter_batch`.
    let batch = (2 * cpus).max(32);
    cpus * batch * PAGE_SIZE as u64
}

/// The same on this machine.
pub fn may_be_off_here() -> u64 {
    may_be_off(release::running(), percpu::online() as u32)
}

/// Last known error of a process's count, in bytes.
#[derive(Debug, Default, Clone, Copy)]
pub struct Correction(i64);

impl Correction {
    /// Learns from a look that found `bytes`, with counts `before` and `after`. Corrects at most
    /// `may_be_off`, because the program runs meanwhile.
    pub fn learn(&mut self, (before, after): (u64, u64), bytes: u64, may_be_off: u64) {
        let most = may_be_off.min(i64::MAX as u64) as i64;
        self.0 = (bytes as i64).wrapping_sub(before.midpoint(after) as i64).clamp(-most, most);
    }

    /// Corrects a count.
    pub fn apply(self, counted: u64) -> u64 {
        counted.saturating_add_signed(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn how_far_off_it_can_be() {
        // uname -r, CPUs: KiB
        let rows = [
            ("6.1.0-31-amd64", 256, 0),
            ("6.8.0-45-generic", 1, 128),
            ("6.8.0-45-generic", 2, 256),
            ("6.8.0-45-generic", 16, 2 << 10),
            ("6.11.0", 64, 32 << 10),
            ("6.12.38+deb13-amd64", 128, 128 << 10),
            ("6.12.39+deb13-amd64", 128, 0),
            ("6.12.100", 128, 0),
            ("6.12.0-55.9.1.el10_0.x86_64", 64, 32 << 10),
            ("6.13.12", 64, 32 << 10),
            ("6.14.0-27-generic", 256, 512 << 10),
            ("6.15.6-arch1-1", 64, 32 << 10),
            ("6.15.7-arch1-1", 64, 0),
            ("6.16.0", 256, 0),
            ("6.18.3", 256, 0),
            ("7.0.0-rc1", 256, 0),
            ("", 256, 0),
        ];
        for (release, cpus, kib) in rows {
            assert_eq!(may_be_off(release::parse(release.as_bytes()), cpus), kib << 10, "{release:?}, {cpus} CPUs");
        }
        assert!(release::running() > (3, 0, 0) && percpu::online() <= percpu::count());
    }

    /// A kernel with batched counts.
    struct Kernel {
        cpus: std::vec::Vec<i64>,
        told: i64,
        pages: i64,
    }

    impl Kernel {
        fn new(cpus: usize) -> Kernel {
            Kernel { cpus: std::vec![0; cpus], told: 0, pages: 0 }
        }

        fn add(&mut self, cpu: usize, pages: i64) {
            self.pages += pages;
            self.cpus[cpu] += pages;
            if self.cpus[cpu].unsigned_abs() >= (2 * self.cpus.len() as u64).max(32) {
                self.told += core::mem::take(&mut self.cpus[cpu]);
            }
        }

        fn statm(&self) -> u64 {
            (self.told.max(0) as u64) << 12
        }

        fn bytes(&self) -> u64 {
            (self.pages as u64) << 12
        }
    }

    #[test]
    fn what_a_look_has_found_puts_the_count_right() {
        let mut kernel = Kernel::new(64);
        let off = may_be_off(release::parse(b"6.14.0"), 64);
        (0..64).for_each(|cpu| kernel.add(cpu, 127));
        assert_eq!((kernel.statm(), kernel.bytes() / MIB), (0, 31), "it reads as nothing");
        let mut correction = Correction::default();
        correction.learn((kernel.statm(), kernel.statm()), kernel.bytes(), off);
        assert_eq!(correction.apply(kernel.statm()), kernel.bytes());
        // All CPUs flush at once, the worst case: the next look corrects it.
        (0..64).for_each(|cpu| kernel.add(cpu, 1));
        assert!(correction.apply(kernel.statm()).abs_diff(kernel.bytes()) <= off);
        // Then pages come and go on all CPUs, as under a limit.
        let mut random = fastrand::Rng::with_seed(1);
        (0..64).for_each(|cpu| kernel.add(cpu, random.i64(0..127)));
        correction.learn((kernel.statm(), kernel.statm()), kernel.bytes(), off);
        let (mut worst, mut uncorrected) = (0, 0);
        for step in 0..200_000 {
            kernel.add(random.usize(..64), if step % 2 == 0 { 1 } else { -1 });
            worst = worst.max(correction.apply(kernel.statm()).abs_diff(kernel.bytes()));
            uncorrected = uncorrected.max(kernel.statm().abs_diff(kernel.bytes()));
            if step % 10_000 == 0 {
                correction.learn((kernel.statm(), kernel.statm()), kernel.bytes(), off);
                assert_eq!(correction.apply(kernel.statm()), kernel.bytes());
            }
        }
        assert!(worst < off / 4 && worst < uncorrected / 2, "{worst} of {uncorrected}, which can be {off}");
    }

    #[test]
    fn no_more_is_put_right_than_can_be_wrong() {
        let mut correction = Correction::default();
        // The program grows by 100 MiB during the look.
        correction.learn((10 * MIB, 110 * MIB), 61 * MIB, 2 * MIB);
        assert_eq!(correction.apply(20 * MIB), 21 * MIB);
        correction.learn((10 * MIB, 10 * MIB), 110 * MIB, 2 * MIB);
        assert_eq!(correction.apply(20 * MIB), 22 * MIB);
        correction.learn((110 * MIB, 110 * MIB), 10 * MIB, 2 * MIB);
        assert_eq!((correction.apply(20 * MIB), correction.apply(MIB)), (18 * MIB, 0));
        correction.learn((110 * MIB, 110 * MIB), 10 * MIB, 0);
        assert_eq!(correction.apply(20 * MIB), 20 * MIB, "an exact count stays as it is");
    }
}
