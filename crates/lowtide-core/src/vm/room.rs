//! Limits reservations. Address space is scarce under RLIMIT_AS (`ulimit -v`, as in batch systems)
//! and vm.overcommit_memory=2: a reservation takes from the program's malloc, or from the whole
//! machine.

use rustix::process::{Resource, getrlimit};

use super::PAGE_SIZE;
use crate::kernel_text::{number, read};

/// Largest part of the rest for a reservation above its minimum.
const PART: usize = 16;
/// Largest part of RLIMIT_AS's rest for compressed RAM.
const POOL_PART: usize = 8;

/// Bytes to reserve, from `least`, which is needed, to `wish`.
pub fn part(wish: usize, least: usize) -> usize {
    part_of(left(), wish, least)
}

/// Bytes of compressed RAM for a process that wants `wish`.
pub fn pool(wish: usize) -> usize {
    left_of_limit().map_or(wish, |left| wish.min(left / POOL_PART))
}

fn part_of(left: Option<usize>, wish: usize, least: usize) -> usize {
    wish.min(left.map_or(usize::MAX, |left| left / PART)).max(least)
}

fn left() -> Option<usize> {
    let of_process = left_of_limit();
    let mut text = [0u8; 4096];
    let is_strict = read(c"/proc/sys/vm/overcommit_memory", &mut text).is_some_and(|mode| mode.first() == Some(&b'2'));
    let of_machine = is_strict.then(|| read(c"/proc/meminfo", &mut text).map_or(0, uncommitted));
    of_process.into_iter().chain(of_machine).min()
}

/// Bytes that RLIMIT_AS leaves to map. None: unlimited.
pub fn left_of_limit() -> Option<usize> {
    limit().map(|limit| limit.saturating_sub(mapped()))
}

/// RLIMIT_AS in bytes. None: unlimited.
pub fn limit() -> Option<usize> {
    getrlimit(Resource::As).current.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Bytes that this process has mapped; 0 if unknown.
pub fn mapped() -> usize {
    read(c"/proc/thread-self/statm", &mut [0u8; 128]).map_or(0, number) as usize * PAGE_SIZE
}

fn uncommitted(meminfo: &[u8]) -> usize {
    let bytes = |field: &[u8]| {
        let value = meminfo.split(|c| *c == b'\n').find_map(|line| line.strip_prefix(field));
        value.map_or(0, |value| (number(value.trim_ascii_start()) as usize) << 10)
    };
    bytes(b"CommitLimit:").saturating_sub(bytes(b"Committed_AS:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_a_small_part_of_what_is_left_and_never_too_little() {
        const GIB: usize = 1 << 30;
        for (left, wish, least, reserved) in [
            // A machine of 64 GiB, a pool of at most 128 MiB now.
            (None, 64 * GIB, GIB / 8, 64 * GIB),
            (Some(8 * GIB), 64 * GIB, GIB / 8, GIB / 2),
            (Some(GIB), 64 * GIB, GIB / 8, GIB / 8),
            (Some(0), 64 * GIB, GIB / 8, GIB / 8),
            (Some(4096 * GIB), 64 * GIB, GIB / 8, 64 * GIB),
            (None, 64 * GIB, 100 * GIB, 100 * GIB),
        ] {
            assert_eq!(part_of(left, wish, least), reserved, "{left:?}, {wish}, {least}");
        }
    }

    #[test]
    fn what_may_be_committed_is_read() {
        let text =
            b"MemTotal:       24000000 kB\nCommitLimit:    12345678 kB\nCommitted_AS:    2345678 kB\nVmallocTotal:  1 kB\n";
        assert_eq!(uncommitted(text), 10_000_000 << 10);
        assert_eq!(uncommitted(b"CommitLimit:  5 kB\nCommitted_AS:  7 kB\n"), 0);
        assert_eq!(uncommitted(b""), 0, "not known: nothing");
    }

    #[test]
    fn this_process_has_what_it_asks_for() {
        // Tests run without such a limit.
        if limit().is_none() && left().is_none() {
            assert_eq!(part(5, 3), 5);
        }
        assert!(mapped() > 100 * PAGE_SIZE);
    }
}
