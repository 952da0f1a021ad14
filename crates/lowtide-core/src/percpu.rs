//! The number of the current CPU, and of all CPUs.

use core::ffi::CStr;
use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::kernel_text;

/// Most distinct CPU numbers; more CPUs share per-CPU data.
pub const MAX_CPUS: usize = 1024;

/// The current CPU, below [`count`]. Stale at once: it chooses a lock, never a result. Takes a
/// nanosecond or two with `rdpid`.
#[inline]
pub fn current() -> usize {
    current_of(count())
}

/// As [`current`], if `n` is [`count`].
#[inline]
pub(crate) fn current_of(n: usize) -> usize {
    // Models must be reproducible.
    if cfg!(any(feature = "loom", feature = "shuttle")) {
        return 0;
    }
    let cpu = number();
    if cpu < n { cpu } else { cpu % n }
}

#[inline]
fn number() -> usize {
    rdpid::number().unwrap_or_else(rustix::thread::sched_getcpu)
}

/// The instruction inside the vdso's getcpu on newer processors.
mod rdpid {
    use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

    const UNKNOWN: u8 = 0;
    const WORKS: u8 = 1;
    const MISSING: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

    #[inline]
    pub(super) fn number() -> Option<usize> {
        match STATE.load(Relaxed) {
            WORKS => Some(read()),
            MISSING => None,
            _ => find_out(),
        }
    }

    #[inline]
    fn read() -> usize {
        let id: u64;
        // SAFETY: the processor has the instruction, which reads a register where Linux puts the
        // numbers of CPU (the lower 12 bits) and node.
        unsafe { core::arch::asm!("rdpid {}", out(reg) id, options(nomem, nostack, preserves_flags)) };
        (id & 0xfff) as usize
    }

    #[cold]
    fn find_out() -> Option<usize> {
        let leaf = core::arch::x86_64::__cpuid_count(7, 0);
        let has = leaf.ecx & (1 << 22) != 0;
        // Compares with the kernel, unless the thread moves in between.
        let agrees = has && (0..4).any(|_| read() == rustix::thread::sched_getcpu());
        STATE.store(if agrees { WORKS } else { MISSING }, Relaxed);
        agrees.then(read)
    }
}

static COUNT: AtomicUsize = AtomicUsize::new(0);

static FORCED_NODES: AtomicUsize = AtomicUsize::new(0);

/// 0: as many as the machine has. (A constant without the feature `lab`.)
pub(crate) fn forced_nodes() -> usize {
    if cfg!(feature = "lab") { FORCED_NODES.load(Ordering::Relaxed) } else { 0 }
}

/// Simulates `cpus` CPUs on `nodes` NUMA nodes, before any per-CPU data exists. (Threads stay on
/// real CPUs.)
#[cfg(feature = "lab")]
pub fn force(cpus: usize, nodes: usize) {
    COUNT.store(cpus.clamp(1, MAX_CPUS), Ordering::Relaxed);
    FORCED_NODES.store(nodes, Ordering::Relaxed);
}

/// The highest possible CPU number plus one, at most [`MAX_CPUS`].
#[inline]
pub fn count() -> usize {
    match COUNT.load(Ordering::Relaxed) {
        0 => {
            let n = last_in(c"/sys/devices/system/cpu/possible").map_or(1, |n| n + 1).min(MAX_CPUS);
            #[cfg(feature = "faults")]
            let n = crate::faults::cpus().unwrap_or(n);
            COUNT.store(n, Ordering::Relaxed);
            n
        }
        n => n,
    }
}

/// The highest online CPU number plus one, read each time.
pub fn online() -> usize {
    last_in(c"/sys/devices/system/cpu/online").map_or(1, |n| n + 1)
}

/// The last, highest number of a kernel list ("0-1", "0,2-63").
pub fn last_in(path: &CStr) -> Option<usize> {
    last_number(kernel_text::read(path, &mut [0u8; 256])?)
}

/// Calls `f` with each number below `most` of a kernel list.
pub fn each_in_list(list: &[u8], most: usize, mut f: impl FnMut(usize)) {
    for part in list.split(|&c| c == b',' || c == b'\n') {
        let mut ends = part.split(|&c| c == b'-').map(|n| core::str::from_utf8(n).ok().and_then(|n| n.parse().ok()));
        let Some(Some(first)) = ends.next() else { continue };
        let last: usize = ends.next().flatten().unwrap_or(first);
        (first..=last.min(most - 1)).for_each(&mut f);
    }
}

fn last_number(text: &[u8]) -> Option<usize> {
    let end = text.iter().rposition(u8::is_ascii_digit)? + 1;
    let start = text[..end].iter().rposition(|c| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    core::str::from_utf8(&text[start..end]).ok()?.parse().ok()
}

/// A share of numbered things, to keep CPUs apart: those whose number, modulo a power of two up to
/// 64, is the CPU's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zone {
    mask: u64,
}

/// One bit in each group of 2^n bits.
const EVERY: [u64; 7] = {
    let mut every = [u64::MAX; 7];
    let mut n = 0;
    while n < 7 {
        every[n] /= u64::MAX >> (64 - (1 << n));
        n += 1;
    }
    every
};

/// Least things in one of more than two zones.
const LEAST_OF_ZONE: usize = 256;

fn shares(cpus: usize, things: usize) -> u32 {
    let most = (things / LEAST_OF_ZONE).clamp(2, 64).ilog2();
    cpus.next_power_of_two().trailing_zeros().min(most)
}

impl Zone {
    /// Everything.
    pub const ALL: Zone = Zone { mask: u64::MAX };

    /// log2 of the number of zones: by online CPUs, because with 2 of 64 possible ones every 32nd
    /// thing would come first. Each zone has at least [`LEAST_OF_ZONE`] things, to use little of a
    /// small area on few CPUs.
    pub fn shares(things: usize) -> u32 {
        if cfg!(any(feature = "loom", feature = "shuttle")) {
            return 1;
        }
        shares(online(), things)
    }

    /// This CPU's of 2^`shares` zones.
    #[inline]
    pub fn own(shares: u32) -> Zone {
        Zone::of(current() & ((1 << shares) - 1), shares)
    }

    #[inline]
    pub(crate) fn of(number: usize, zones: u32) -> Zone {
        Zone { mask: EVERY[zones as usize] << number }
    }

    /// Its number; `None`: [`Zone::ALL`].
    #[inline]
    pub fn number(self) -> Option<usize> {
        (self != Zone::ALL).then_some(self.mask.trailing_zeros() as usize)
    }

    /// Whether thing `i` is in this zone.
    pub fn has(self, i: usize) -> bool {
        self.mask >> (i % 64) & 1 == 1
    }
}

/// Keeps this thread in zone 1 (or all, on one CPU), for a stable order of clusters.
#[cfg(test)]
pub(crate) fn stay_on_cpu_1() {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(1);
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
}

/// A value on its own two cache lines, because CPUs fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CacheAligned<T>(pub T);

impl<T> Deref for CacheAligned<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_share_everything_out() {
        for shares in 0..=6 {
            let (zone, zones) = (Zone::own(shares), 1 << shares);
            assert_eq!((0..640).filter(|i| zone.has(*i)).count(), 640 / zones);
            assert!((0..640).all(|i| Zone::ALL.has(i) && zone.has(i) == zone.has(i + zones)));
        }
    }

    #[test]
    fn zones_are_few_where_cpus_or_things_are() {
        // CPUs online, clusters of 2 MiB, zones.
        for (cpus, clusters, zones) in [
            (1, 1 << 20, 1),
            (2, 10, 2),
            (2, 1 << 20, 2),
            (3, 1 << 20, 4),
            // Areas of 20 MiB, 1, 4 and 32 GiB.
            (64, 10, 2),
            (64, 512, 2),
            (64, 2048, 8),
            (64, 16384, 64),
            (1024, 1 << 20, 64),
        ] {
            assert_eq!(1 << shares(cpus, clusters), zones, "{cpus} CPUs, {clusters} clusters");
        }
        let online = online();
        assert_eq!(Zone::shares(1 << 20), shares(online, 1 << 20));
    }

    #[test]
    fn the_highest_number_counts() {
        for (text, n) in [("0\n", 0), ("0-1\n", 1), ("0,2-63\n", 63), ("0-3,8", 8)] {
            assert_eq!(last_number(text.as_bytes()), Some(n));
        }
        assert_eq!(last_number(b"\n"), None);
        assert!(current() < count() && count() <= MAX_CPUS);
        assert!((0..100).any(|_| current() == rustix::thread::sched_getcpu()));
    }
}
