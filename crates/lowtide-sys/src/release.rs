//! Linux versions, for facts that no probe can tell.

use lowtide_core::kernel_text::number;

/// Major, minor and patch level.
pub type Release = (u32, u32, u32);

/// Parses `uname -r`; ignores the distribution's suffix, as in 6.8.0-45-generic.
pub fn parse(text: &[u8]) -> Release {
    let version = text.split(|c| !c.is_ascii_digit() && *c != b'.').next().unwrap_or_default();
    let mut numbers = version.split(|c| *c == b'.').map(|n| number(n) as u32);
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// This machine's version. A distribution may leave the patch level at 0.
pub fn running() -> Release {
    parse(rustix::system::uname().release().to_bytes())
}

/// Whether a kernel has a fix from `all` on, or from these patch levels of earlier series in
/// `some`.
pub fn has(kernel: Release, all: Release, some: &[Release]) -> bool {
    kernel >= all || some.iter().any(|at| (at.0, at.1) == (kernel.0, kernel.1) && kernel.2 >= at.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_distributions_write_them() {
        for (text, release) in [
            ("6.8.0-45-generic", (6, 8, 0)),
            ("6.12.43+deb13-amd64", (6, 12, 43)),
            ("6.12.0-55.9.1.el10_0.x86_64", (6, 12, 0)),
            ("6.16-rc3", (6, 16, 0)),
            ("6.12-3-name", (6, 12, 0)),
            ("7.0", (7, 0, 0)),
            ("", (0, 0, 0)),
        ] {
            assert_eq!(parse(text.as_bytes()), release, "{text}");
        }
        assert!(running() > (3, 0, 0));
    }

    #[test]
    fn a_correction_is_in_later_series_and_in_some_earlier_ones_from_a_patch_level_on() {
        let here = |kernel| has(kernel, (6, 16, 0), &[(6, 12, 37), (6, 15, 5)]);
        assert!([(6, 16, 0), (7, 0, 0), (6, 12, 37), (6, 12, 90), (6, 15, 5)].into_iter().all(here));
        assert!(![(6, 12, 36), (6, 13, 99), (6, 15, 4), (6, 11, 40)].into_iter().any(here));
    }
}
