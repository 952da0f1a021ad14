//! Which CPU am I on, and how many are there.

use core::ffi::CStr;
use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::kernel_text;

/// Most CPUs that are told apart; beyond that, two share what is kept per CPU.
pub const MAX_CPUS: usize = 1024;

/// Number of the CPU that this thread runs on, below [`count`]. Stale as soon as it is known: what is kept per CPU has a lock,
/// and a stale number costs a lock of another CPU, never a wrong result. Costs a nanosecond or two where one instruction tells
/// it.
#[inline]
pub fn current() -> usize {
    // Models replay the same decisions.
    if cfg!(any(feature = "loom", feature = "shuttle")) {
        return 0;
    }
    let (cpu, n) = (number(), count());
    if cpu < n { cpu } else { cpu % n }
}

#[inline]
fn number() -> usize {
    rdpid::number().unwrap_or_else(rustix::thread::sched_getcpu)
}

/// The instruction that the vdso's getcpu is made of on newer processors, without the way there.
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
        // SAFETY: the processor has the instruction; it only reads a register that Linux fills with the numbers of CPU (the
        // lower 12 bits) and node.
        unsafe { core::arch::asm!("rdpid {}", out(reg) id, options(nomem, nostack, preserves_flags)) };
        (id & 0xfff) as usize
    }

    #[cold]
    fn find_out() -> Option<usize> {
        let leaf = core::arch::x86_64::__cpuid_count(7, 0);
        let has = leaf.ecx & (1 << 22) != 0;
        // And the register is what it is taken for: as the kernel says, unless the thread moves between the two.
        let agrees = has && (0..4).any(|_| read() == rustix::thread::sched_getcpu());
        STATE.store(if agrees { WORKS } else { MISSING }, Relaxed);
        agrees.then(read)
    }
}

/// What [`count`] has found out; 0: nothing yet.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// See [`force`]; 0: what the kernel says.
#[cfg(feature = "lab")]
pub(crate) static FORCED_NODES: AtomicUsize = AtomicUsize::new(0);

/// From here on all goes as on a machine with `cpus` CPUs, which are divided evenly over `nodes` NUMA nodes. For experiments:
/// before anything is made that is kept per CPU. (Threads stay on the CPUs that there are.)
#[cfg(feature = "lab")]
pub fn force(cpus: usize, nodes: usize) {
    COUNT.store(cpus.clamp(1, MAX_CPUS), Ordering::Relaxed);
    FORCED_NODES.store(nodes, Ordering::Relaxed);
}

/// How many CPUs this machine can have: one more than the highest number, at most [`MAX_CPUS`].
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

/// How many CPUs are online: as [`count`], of those that work now. Looks each time.
pub fn online() -> usize {
    last_in(c"/sys/devices/system/cpu/online").map_or(1, |n| n + 1)
}

/// The highest number in one of the kernel's lists ("0-1", "0,2-63"): the last one.
pub fn last_in(path: &CStr) -> Option<usize> {
    last_number(kernel_text::read(path, &mut [0u8; 256])?)
}

/// Calls `f` with each number below `most` of such a list.
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

/// A share of things that are numbered, so that CPUs keep apart while there is room: those whose number, modulo a power of two
/// of at most 64, is that of the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zone {
    /// Bit n: a thing whose number ends in n, modulo 64, is of this zone.
    mask: u64,
}

/// One bit in each group of 2^n bits. (A table: a search would feel the division.)
const EVERY: [u64; 7] = {
    let mut every = [u64::MAX; 7];
    let mut n = 0;
    while n < 7 {
        every[n] /= u64::MAX >> (64 - (1 << n));
        n += 1;
    }
    every
};

impl Zone {
    /// Everything.
    pub const ALL: Zone = Zone { mask: u64::MAX };

    /// How many zones there are: a power of two.
    #[inline]
    pub fn count() -> usize {
        // As many on all machines: models are the same everywhere.
        if cfg!(any(feature = "loom", feature = "shuttle")) {
            return 2;
        }
        count().next_power_of_two().min(64)
    }

    /// The zone of this CPU.
    #[inline]
    pub fn own() -> Zone {
        let zones = Zone::count();
        Zone::of(current() & (zones - 1), zones.trailing_zeros())
    }

    /// One of 2^`zones`.
    #[inline]
    pub(crate) fn of(number: usize, zones: u32) -> Zone {
        Zone { mask: EVERY[zones as usize] << number }
    }

    /// Its number, below [`Zone::count`]; `None`: everything.
    #[inline]
    pub fn number(self) -> Option<usize> {
        (self != Zone::ALL).then_some(self.mask.trailing_zeros() as usize)
    }

    /// Whether thing `i` is of this zone.
    pub fn has(self, i: usize) -> bool {
        self.mask >> (i % 64) & 1 == 1
    }
}

/// For tests that rely on the order in which clusters are used: keeps this thread on one CPU, whose zone has number 1 (or all
/// numbers, on a machine with one CPU).
#[cfg(test)]
pub(crate) fn stay_on_cpu_1() {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(1);
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
}

/// A value on cache lines of its own: two lines, because CPUs fetch lines in pairs.
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
        let zone = Zone::own();
        let zones = count().next_power_of_two().min(64);
        assert_eq!((0..640).filter(|i| zone.has(*i)).count(), 640 / zones);
        assert!((0..640).all(|i| Zone::ALL.has(i) && zone.has(i) == zone.has(i + zones)));
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
