//! The machine as this process may use it: memory, memory cgroup, kernel version, transparent huge
//! pages.

use std::fs;
use std::path::{Path, PathBuf};

use lowtide_config::size;
use lowtide_sys::rss;

/// Bytes.
pub fn ram_total() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// RAM that this process may use: the machine's, or a lower limit of a memory cgroup (v1 or v2, its
/// own or an ancestor).
pub fn ram_usable() -> u64 {
    cgroup_limit().unwrap_or(u64::MAX).min(ram_total())
}

/// The tightest visible memory limit of this process's cgroups.
pub fn cgroup_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    tightest(&groups, &mounts, |path| fs::read_to_string(path).ok())
}

/// The setting of transparent huge pages: `always`, `madvise` or `never`. None: not in this kernel.
pub fn thp() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// The accuracy of the kernel's count of a process's memory, in words.
pub fn counts() -> String {
    match rss::may_be_off_here() {
        0 => "exact".to_owned(),
        bytes => format!(
            "of each process off by up to {} (Linux {} or later counts exactly): put right at intervals",
            size::show(bytes),
            rss::EXACT
        ),
    }
}

/// A warning if `bytes`, the error of a count, is much of the limit.
pub fn odd_counts(limit: u64, bytes: u64) -> Option<String> {
    (bytes > limit / 16).then(|| {
        format!(
            "this kernel's counts of memory can be off by {} in each process, which is much of --ram {}: the limit may be passed \
             (Linux {} or later counts exactly)",
            size::show(bytes),
            size::show(limit),
            rss::EXACT
        )
    })
}

fn tightest(groups: &str, mounts: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut limit = None;
    for line in groups.lines() {
        // hierarchy:controllers:path
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (file, v2) = match controllers {
            "" => ("memory.max", true),
            _ if controllers.split(',').any(|c| c == "memory") => ("memory.limit_in_bytes", false),
            _ => continue,
        };
        let Some((root, point)) = mounts.lines().find_map(|mount| memory_mount(mount, v2)) else { continue };
        // In a container the mount may show only the part of the hierarchy from `root` on.
        let below = Path::new(group).strip_prefix(&root).or_else(|_| Path::new(group).strip_prefix("/"));
        let mut dir = point.join(below.unwrap_or(Path::new("")));
        loop {
            if let Some(bytes) = read(&dir.join(file)).and_then(|text| text.trim().parse::<u64>().ok()) {
                limit = Some(limit.unwrap_or(u64::MAX).min(bytes));
            }
            if dir == point || !dir.pop() {
                break;
            }
        }
    }
    // v1's "no limit" is the largest number of pages.
    limit.filter(|&bytes| bytes < i64::MAX as u64 - (1 << 20))
}

/// Root and mount point if this line of mountinfo is the cgroup mount (v2, or v1's memory).
fn memory_mount(line: &str, v2: bool) -> Option<(PathBuf, PathBuf)> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let kind = right.next()?;
    let options = right.nth(1)?;
    let wanted = if v2 { kind == "cgroup2" } else { kind == "cgroup" && options.split(',').any(|o| o == "memory") };
    let mut left = left.split(' ').skip(3);
    wanted.then_some((PathBuf::from(left.next()?), PathBuf::from(left.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_takes_the_tightest_of_all_levels() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        let read = |path: &Path| match path.to_str() {
            Some("/sys/fs/cgroup/a/b/memory.max") => Some("max\n".to_owned()),
            Some("/sys/fs/cgroup/a/memory.max") => Some("1073741824\n".to_owned()),
            _ => None,
        };
        assert_eq!(tightest("0::/a/b\n", mounts, read), Some(1 << 30));
        assert_eq!(tightest("0::/\n", mounts, read), None);
    }

    #[test]
    fn v1_in_a_container_whose_mount_begins_at_its_group() {
        let mounts = "35 31 0:32 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                      36 31 0:33 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu";
        let read =
            |path: &Path| (path == Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes")).then(|| "268435456\n".to_owned());
        assert_eq!(tightest("4:memory:/docker/x\n1:cpu:/\n0::/\n", mounts, read), Some(256 << 20));
    }

    #[test]
    fn v1_without_a_limit() {
        let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        assert_eq!(tightest("4:memory:/\n", mounts, |_| Some("9223372036854771712\n".to_owned())), None);
    }

    #[test]
    fn counts_that_are_off_are_said_where_it_matters() {
        assert_eq!((odd_counts(512 << 20, 0), odd_counts(512 << 20, 32 << 20)), (None, None));
        let said = odd_counts(256 << 20, 32 << 20).unwrap();
        assert!(said.contains("off by 32 MiB") && said.contains("6.12.39") && !said.contains('\n'), "{said}");
    }

    #[test]
    fn this_machine() {
        assert!(ram_total() > 64 << 20);
        assert!(ram_usable() <= ram_total());
    }
}
