//! CPUs that this process may use.

use lowtide_core::percpu;
use rustix::thread::sched_getaffinity;

/// Online CPUs allowed for the calling thread, as an estimate for the process; all possible CPUs if
/// unknown.
pub fn allowed() -> u32 {
    sched_getaffinity(None).map_or(percpu::count() as u32, |cpus| cpus.count()).max(1)
}
