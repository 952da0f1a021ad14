//! Warns of kernels in which UFFDIO_MOVE races with the kernel's own swap: before two corrections,
//! moving a page under swap-out or swap-in could corrupt the kernel. lowtide moves pages all the
//! time, of a program that the kernel may swap while RAM is short. It warns and does not refuse:
//! the window is microseconds wide, most such machines swap little, and a distribution may have the
//! corrections under an older version.

use lowtide_sys::release::{self, Release};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// A page still in the swap cache moves without its reverse map: a kernel BUG, or worse, when
    /// it comes back (CVE-2025-21984, fixed by c50f8e6053b0).
    Cache,
    /// The page found in the swap cache may be another one by the time of the move (CVE-2025-38242,
    /// fixed by 0ea148a79919).
    Race,
}

/// A bug, the first version without it, and the versions of earlier series that fixed it. Both bugs
/// came with [`SINCE`].
type Entry = (Bug, Release, &'static [Release]);

/// The worst first: a kernel with both gets its warning.
const BUGS: [Entry; 2] =
    [(Bug::Cache, (6, 14, 0), &[(6, 12, 20), (6, 13, 8)]), (Bug::Race, (6, 16, 0), &[(6, 12, 37), (6, 15, 5)])];

const SINCE: Release = (6, 8, 0);

/// The remedy for either: no kernel has the later correction without the earlier one.
const REMEDY: &str = "boot Linux 6.16 or later, 6.15 from 6.15.5 or 6.12 from 6.12.37 on, or one whose maker has mended it; or turn \
                      swap off (`swapoff -a`)";

/// The worst bug of kernel.org's kernel of this version.
fn bug_of(kernel: Release) -> Option<Bug> {
    BUGS.iter().filter(|_| kernel >= SINCE).find(|(_, all, some)| !release::has(kernel, *all, some)).map(|(bug, ..)| *bug)
}

/// None: nothing can go wrong. `swaps`: swap is on.
fn warning_of(kernel: Release, swaps: bool) -> Option<String> {
    let bug = bug_of(kernel).filter(|_| swaps)?;
    let (major, minor, patch) = kernel;
    let what = match bug {
        Bug::Cache => "can crash, or lose track of a page, where it swaps one while lowtide moves it (CVE-2025-21984)",
        Bug::Race => "can, very rarely, mix up pages where it swaps one while lowtide moves it (CVE-2025-38242)",
    };
    Some(format!("this kernel ({major}.{minor}.{patch}) {what}, and swap is on: {REMEDY}"))
}

/// Whether the kernel has a swap area. Unreadable counts as yes.
fn swaps(list: std::io::Result<String>) -> bool {
    match list {
        Ok(list) => list.lines().count() > 1,
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// The warning for this machine, in one line.
pub fn warning() -> Option<String> {
    warning_of(release::running(), swaps(std::fs::read_to_string("/proc/swaps")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn each_kernel_has_the_bugs_that_were_not_mended_in_it() {
        for (kernel, bug) in [
            ((6, 7, 12), None),
            ((6, 8, 0), Some(Bug::Cache)),
            ((6, 11, 11), Some(Bug::Cache)),
            ((6, 12, 0), Some(Bug::Cache)),
            ((6, 12, 19), Some(Bug::Cache)),
            ((6, 12, 20), Some(Bug::Race)),
            ((6, 12, 36), Some(Bug::Race)),
            ((6, 12, 37), None),
            ((6, 12, 60), None),
            ((6, 13, 7), Some(Bug::Cache)),
            ((6, 13, 8), Some(Bug::Race)),
            ((6, 13, 37), Some(Bug::Race)),
            ((6, 14, 0), Some(Bug::Race)),
            ((6, 14, 11), Some(Bug::Race)),
            ((6, 15, 4), Some(Bug::Race)),
            ((6, 15, 5), None),
            ((6, 16, 0), None),
            ((6, 18, 44), None),
            ((7, 0, 0), None),
        ] {
            assert_eq!(bug_of(kernel), bug, "{kernel:?}");
        }
    }

    #[test]
    fn it_is_said_only_where_the_kernel_swaps_and_in_one_line() {
        assert_eq!((warning_of((6, 8, 0), false), warning_of((6, 18, 1), true)), (None, None));
        for (kernel, words) in [((6, 8, 0), ["(6.8.0)", "CVE-2025-21984"]), ((6, 14, 2), ["(6.14.2)", "CVE-2025-38242"])] {
            let line = warning_of(kernel, true).expect("a warning");
            assert!(words.iter().all(|word| line.contains(word)) && line.contains("6.12.37"), "{line}");
            assert!(!line.contains('\n') && !line.contains("  "), "{line}");
        }
    }

    #[test]
    fn the_list_of_swap_areas_is_read() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        let area = "/dev/zram0                              partition\t8388604\t\t0\t\t100\n";
        assert!(!swaps(Ok(heading.to_owned())) && swaps(Ok(format!("{heading}{area}"))));
        assert!(!swaps(Err(Error::from(ErrorKind::NotFound))), "a kernel without swap");
        assert!(swaps(Err(Error::from(ErrorKind::PermissionDenied))), "not known");
    }
}
