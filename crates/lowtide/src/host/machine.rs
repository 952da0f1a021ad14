//! The machine as this process may use it: memory, memory cgroup, kernel version, transparent huge pages.

use std::fs;
use std::path::{Path, PathBuf};

/// RAM of the machine in bytes.
pub fn ram_total() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// RAM that this process may use: the machine's, or less where a memory cgroup (v1 or v2, this one or one above it) says so.
pub fn ram_usable() -> u64 {
    cgroup_limit().unwrap_or(u64::MAX).min(ram_total())
}

/// The tightest memory limit of this process's cgroups. None: no limit that can be seen.
pub fn cgroup_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    tightest(&groups, &mounts, |path| fs::read_to_string(path).ok())
}

/// A kernel's version: major, minor and patch level.
pub type Release = (u32, u32, u32);

/// Kernel version as (major, minor).
pub fn kernel_version() -> (u32, u32) {
    let (major, minor, _) = kernel_release();
    (major, minor)
}

/// Kernel version with the patch level, which a distribution may leave at 0.
pub fn kernel_release() -> Release {
    release_of(&rustix::system::uname().release().to_string_lossy())
}

fn release_of(text: &str) -> Release {
    // What follows, as in 6.8.0-45-generic, is the distribution's.
    let version = text.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or("");
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// The setting of transparent huge pages: `always`, `madvise` or `never`. None: not in this kernel.
pub fn thp() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
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
        // In a container the mount may show only a part of the hierarchy, beginning at `root`.
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
    // v1 writes "no limit" as the largest number of pages.
    limit.filter(|&bytes| bytes < i64::MAX as u64 - (1 << 20))
}

/// Root and mount point, if this line of mountinfo is the (v2 or memory) cgroup mount.
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
            assert_eq!(release_of(text), release, "{text}");
        }
    }

    #[test]
    fn this_machine() {
        assert!(ram_total() > 64 << 20);
        assert!(ram_usable() <= ram_total());
        assert!(kernel_version() > (3, 0));
    }
}
