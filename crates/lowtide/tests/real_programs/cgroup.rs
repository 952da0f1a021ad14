//! Control groups for one test, of either version, removed when dropped.

use std::fs;
use std::path::{Path, PathBuf};

use crate::machine::skip;
use crate::measure::Job;

/// Where the groups of version 2 are, unless those of version 1 are beneath.
const ROOT: &str = "/sys/fs/cgroup";

/// A group that one controller looks after.
pub struct Cgroup {
    path: PathBuf,
    controller: &'static str,
    /// The controller was turned on for it.
    turned_on: bool,
}

impl Cgroup {
    /// One with so much memory; None (said loudly) where it can't be made.
    pub fn of_memory(bytes: u64) -> Option<Cgroup> {
        Cgroup::new("memory", &[("memory.limit_in_bytes", &bytes.to_string())], &[("memory.max", &bytes.to_string())])
    }

    /// One of these CPUs, as a list of the kernel's; None as above.
    pub fn of_cpus(cpus: &str) -> Option<Cgroup> {
        let nodes = fs::read_to_string(Path::new(ROOT).join("cpuset/cpuset.mems")).unwrap_or_default();
        Cgroup::new("cpuset", &[("cpuset.mems", nodes.trim()), ("cpuset.cpus", cpus)], &[("cpuset.cpus", cpus)])
    }

    /// With these files, in version 1 and 2.
    fn new(controller: &'static str, first: &[(&str, &str)], second: &[(&str, &str)]) -> Option<Cgroup> {
        let name = format!("lowtide-test-{controller}-{}", std::process::id());
        let control = Path::new(ROOT).join("cgroup.subtree_control");
        let is_on = || fs::read_to_string(&control).is_ok_and(|all| all.split_whitespace().any(|one| one == controller));
        for (root, files) in [(Path::new(ROOT).join(controller), first), (PathBuf::from(ROOT), second)] {
            // A folder can be made wherever these may be mounted.
            if !root.join("cgroup.procs").exists() {
                continue;
            }
            let turned_on = root == Path::new(ROOT) && !is_on() && fs::write(&control, format!("+{controller}")).is_ok();
            let cgroup = Cgroup { path: root.join(&name), controller, turned_on };
            if fs::create_dir(&cgroup.path).is_ok() && files.iter().all(|(file, value)| cgroup.set(file, value)) {
                return Some(cgroup);
            }
        }
        skip(&format!("a {controller} cgroup can't be made"));
        None
    }

    /// Writes to one of its files; whether that was taken.
    pub fn set(&self, file: &str, value: &str) -> bool {
        fs::write(self.path.join(file), value).is_ok()
    }

    /// The job, in this group from its start; None: there is no shell.
    pub fn around(&self, job: Job) -> Option<Job> {
        let join = format!("echo $$ > '{}'; exec \"$@\"", self.path.join("cgroup.procs").display());
        Some(job.around(crate::machine::tool("sh")?, &["-c", &join, "sh"]))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Where a test has failed the run goes on for a moment.
        for pid in fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(self.path.with_file_name("cgroup.procs"), pid);
        }
        // Its processes have ended, but may not have left yet.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() || !self.path.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if self.turned_on {
            let _ = fs::write(Path::new(ROOT).join("cgroup.subtree_control"), format!("-{}", self.controller));
        }
    }
}
