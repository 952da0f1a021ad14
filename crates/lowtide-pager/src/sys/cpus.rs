//! How many CPUs this process may use.

use lowtide_core::percpu;
use rustix::thread::sched_getaffinity;

/// CPUs that the calling thread may run on: what its process may use, in the first place. Those that are offline are not among
/// them. Where the kernel does not say, all that the machine can have.
pub fn allowed() -> u32 {
    sched_getaffinity(None).map_or(percpu::count() as u32, |cpus| cpus.count()).max(1)
}
