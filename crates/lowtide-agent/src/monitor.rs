//! The monitor threads, one pinned to each CPU. When a thread of the program blocks on a missing page, the monitor of its CPU runs at
//! once, with no other CPU to be woken in between. What a monitor does is the pager's monitor.rs.

use lowtide_pager::monitor::Monitor;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{agent, keeper, say, thread};

/// Most monitors: each fault wakes all of them, so more of them cost more.
const MAX_MONITORS: usize = 16;

/// Starts a monitor for each CPU that this process may use.
pub fn start() {
    let cpus = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let mut started = 0;
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| cpus.is_set(cpu)).take(MAX_MONITORS) {
        started += usize::from(thread::spawn(run, cpu).is_ok());
    }
    if started == 0 {
        say::fatal(b"no monitor thread could be started");
    }
}

extern "C" fn run(cpu: usize) -> ! {
    thread::name(c"lowtide-monitor");
    let mut only = CpuSet::new();
    only.set(cpu);
    // Without it the monitor floats: slower, not wrong.
    let _ = sched_setaffinity(None, &only);
    let (Some(pager), Ok(mut monitor)) = (agent::pager(), Monitor::new()) else { say::fatal(b"no memory for a monitor") };
    loop {
        let turn = monitor.turn(pager, -1);
        if turn.remapped {
            keeper::look_again();
        }
        if pager.budget.above_high() {
            keeper::wake_if_asleep();
        }
    }
}
