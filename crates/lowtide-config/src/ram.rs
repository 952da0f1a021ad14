//! The RAM limit, and the part of it that the compressed pool may take.

/// Smallest limit in bytes: below it a program's own libraries and lowtide's tables hardly fit.
pub const LEAST: u64 = 16 << 20;

/// Bytes that the pool may take of `ram` (at least [`LEAST`]) if nobody says: all but a working minimum of the program (an
/// eighth, at least 4 MiB) and what is in staging on its way (a thirty-second). (Of the upper part of it pages must compress
/// well to get some where there is a device: see `Store::store_run`.)
pub fn default_pool(ram: u64) -> u64 {
    ram - (ram / 8).max(4 << 20) - ram / 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_leaves_the_program_a_minimum() {
        assert_eq!(default_pool(LEAST), (12 << 20) - (512 << 10));
        assert_eq!(default_pool(1 << 30), (1 << 30) - (160 << 20));
    }
}
