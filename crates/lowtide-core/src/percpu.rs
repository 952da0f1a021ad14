//! Which CPU am I on, and how many are there.

use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags};

/// Most CPUs that are told apart; beyond that, two share what is kept per CPU.
pub const MAX_CPUS: usize = 1024;

/// Number of the CPU that this thread runs on, below [`count`]. Stale as soon as it is known: what is kept per CPU has a lock, and
/// a stale number costs a lock of another CPU, never a wrong result. Costs a few nanoseconds (the vdso reads a register).
#[inline]
pub fn current() -> usize {
    // Models replay the same decisions.
    if cfg!(any(feature = "loom", feature = "shuttle")) {
        return 0;
    }
    let cpu = rustix::thread::sched_getcpu();
    let n = count();
    if cpu < n { cpu } else { cpu % n }
}

/// How many CPUs this machine can have: one more than the highest number, at most [`MAX_CPUS`].
#[inline]
pub fn count() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    match COUNT.load(Ordering::Relaxed) {
        0 => {
            let n = read_possible().unwrap_or(1).clamp(1, MAX_CPUS);
            COUNT.store(n, Ordering::Relaxed);
            n
        }
        n => n,
    }
}

/// The kernel's list of possible CPUs ends with the highest number: "0-1", "0,2-63".
fn read_possible() -> Option<usize> {
    let fd = rustix::fs::open(c"/sys/devices/system/cpu/possible", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let mut text = [0u8; 256];
    let len = fd.and_then(|fd| rustix::io::read(fd, &mut text)).ok()?;
    last_number(&text[..len]).map(|n| n + 1)
}

fn last_number(text: &[u8]) -> Option<usize> {
    let end = text.iter().rposition(u8::is_ascii_digit)? + 1;
    let start = text[..end].iter().rposition(|c| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    core::str::from_utf8(&text[start..end]).ok()?.parse().ok()
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
    fn the_highest_number_counts() {
        for (text, n) in [("0\n", 0), ("0-1\n", 1), ("0,2-63\n", 63), ("0-3,8", 8)] {
            assert_eq!(last_number(text.as_bytes()), Some(n));
        }
        assert_eq!(last_number(b"\n"), None);
        assert!(current() < count() && count() <= MAX_CPUS);
    }
}
