//! An order of threads that a test sets: all have one CPU, and one that gives way runs only while no other wants to. What the
//! kernel does for one of these (it takes pages away, it returns from a read) is then held up at the moment in which it makes
//! another thread run.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const SCHED_BATCH: i32 = 3;
const SCHED_IDLE: i32 = 5;

unsafe extern "C" {
    fn sched_setscheduler(thread: i32, policy: i32, parameter: *const i32) -> i32;
}

/// The calling thread, and those that it makes from now on, have one CPU. The test must have a thread of its own, as tests do.
pub fn stay() {
    let cpus = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| cpus.is_set(cpu)).unwrap();
    let mut only = CpuSet::new();
    only.set(first);
    sched_setaffinity(None, &only).unwrap();
}

/// The calling thread gives way to all others from now on.
pub fn give_way() {
    be(SCHED_IDLE);
}

/// The calling thread runs in place of no other when it wakes, only after it.
pub fn interrupt_nobody() {
    be(SCHED_BATCH);
}

fn be(policy: i32) {
    // SAFETY: reads the priority that is behind the pointer.
    let r = unsafe { sched_setscheduler(0, policy, &0) };
    assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
}
