//! The RAM limit, and the compressed pool's part of it.

/// Least limit in bytes: a program's libraries and lowtide's tables hardly fit in less.
pub const LEAST: u64 = 16 << 20;

/// Default pool limit in bytes: `ram` (at least [`LEAST`]) without a working minimum of the program
/// (an eighth, at least 4 MiB) and staging (a thirty-second). With a device, only well-compressing
/// pages use its upper part: see `Store::store_run`.
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
