//! How much address space lowtide may take for what it reserves once, large enough for all that may come. Mostly that is free.
//! It is not where a process may have only so much of it (`ulimit -v`, which batch systems set), nor where the kernel promises
//! no memory that it does not have (vm.overcommit_memory=2): there what lowtide reserves is missing in the program, whose
//! malloc fails, or in the whole machine.

use rustix::process::{Resource, getrlimit};

use super::PAGE_SIZE;
use crate::kernel_text::{number, read};

/// Of what is left at most this part is taken, unless less would not do.
const PART: usize = 16;
/// Of what a process may still map (`ulimit -v`) compressed RAM takes no more than this part.
const POOL_PART: usize = 8;

/// How many bytes to reserve for what may come to need `wish` and does not work with less than `least`.
pub fn part(wish: usize, least: usize) -> usize {
    part_of(left(), wish, least)
}

/// How much compressed RAM a process may have that asks for `wish`.
pub fn pool(wish: usize) -> usize {
    left_of_limit().map_or(wish, |left| wish.min(left / POOL_PART))
}

/// `left`: bytes that may still be mapped, if they are limited.
fn part_of(left: Option<usize>, wish: usize, least: usize) -> usize {
    wish.min(left.map_or(usize::MAX, |left| left / PART)).max(least)
}

/// Bytes of address space that this process may still map, or that the kernel may still promise. None: as many as it likes.
fn left() -> Option<usize> {
    let of_process = left_of_limit();
    let mut text = [0u8; 4096];
    let is_strict = read(c"/proc/sys/vm/overcommit_memory", &mut text).is_some_and(|mode| mode.first() == Some(&b'2'));
    let of_machine = is_strict.then(|| read(c"/proc/meminfo", &mut text).map_or(0, uncommitted));
    of_process.into_iter().chain(of_machine).min()
}

/// Bytes of address space that this process may still map (`ulimit -v`). None: as many as it likes.
pub fn left_of_limit() -> Option<usize> {
    limit().map(|limit| limit.saturating_sub(mapped()))
}

/// Bytes of address space that this process may map (`ulimit -v`). None: as many as it likes.
pub fn limit() -> Option<usize> {
    getrlimit(Resource::As).current.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Bytes of address space that this process has mapped; 0 if that can't be told.
pub fn mapped() -> usize {
    read(c"/proc/self/statm", &mut [0u8; 128]).map_or(0, number) as usize * PAGE_SIZE
}

/// Bytes that may still be committed, as /proc/meminfo says.
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
            // Where there is plenty, all of it is reserved.
            (Some(4096 * GIB), 64 * GIB, GIB / 8, 64 * GIB),
            // Whoever asks for more than the machine has gets it.
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
