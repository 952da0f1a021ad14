//! The monitor threads, one pinned to each CPU. When a thread of the program blocks on a missing page, the monitor of its CPU
//! runs at once, with no other CPU to be woken in between. Those of the other CPUs are not woken in vain (`watch.rs`). What a
//! monitor does is the pager's monitor.rs.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering};

use lowtide_pager::fault::Monitor;
use lowtide_pager::sys::Line;
use rustix::io::Errno;
use rustix::thread::{CpuSet, futex, sched_getaffinity, sched_setaffinity};

use crate::watch::{self, MAX_MONITORS, Watch};
use crate::{agent, say, thread, wake};

/// Said where there are none.
pub fn none(error: Errno) -> Line {
    let mut line = Line::new();
    line.push(b"no monitor thread could be started (errno ").number(error.raw_os_error() as u64).push(b")");
    line
}

/// 1: they go to work.
static GO: AtomicU32 = AtomicU32::new(0);

/// What a monitor thread begins with. The reclaimer makes it: no fork may meet a monitor that allocates, which is no operation
/// that a fork would wait for.
struct Start {
    cpu: usize,
    monitor: Monitor,
}

/// Starts a monitor for each CPU that this process may use. They do nothing before [`go`]. By the reclaimer.
///
/// # Errors
/// Not one could be started.
pub fn start() -> Result<(), Errno> {
    GO.store(0, Ordering::Relaxed);
    watch::reset();
    let cpus = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let mut result = Err(Errno::SRCH);
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| cpus.is_set(cpu)).take(MAX_MONITORS) {
        result = match (start_on(cpu), result) {
            (Err(error), Err(_)) => Err(error),
            _ => Ok(()),
        };
    }
    result
}

fn start_on(cpu: usize) -> Result<(), Errno> {
    let start = Box::into_raw(Box::new(Start { cpu, monitor: Monitor::new()? }));
    thread::spawn(run, start.expose_provenance()).map(drop).inspect_err(|_| {
        // SAFETY: made here, and no thread has it.
        drop(unsafe { Box::from_raw(start) });
    })
}

/// The monitors go to work: there is a pager.
pub fn go() {
    // Release: pairs with the Acquire in `run`. The pager is set.
    GO.store(1, Ordering::Release);
    let _ = futex::wake(&GO, futex::Flags::PRIVATE, i32::MAX as u32);
}

extern "C" fn run(start: usize) -> ! {
    thread::name(c"lowtide-monitor");
    // SAFETY: the box that `start_on` made for this thread alone, which never frees it.
    let Start { cpu, monitor } = unsafe { &mut *core::ptr::with_exposed_provenance_mut::<Start>(start) };
    let mut only = CpuSet::new();
    only.set(*cpu);
    // Without it the monitor floats: slower, not wrong.
    let _ = sched_setaffinity(None, &only);
    // Acquire: pairs with the Release in `go`.
    while GO.load(Ordering::Acquire) == 0 {
        let _ = futex::wait(&GO, futex::Flags::PRIVATE, 0, None);
    }
    let Some(pager) = agent::pager() else { say::fatal(b"a monitor has nothing to watch") };
    agent::thread_begins();
    let mut watch = Watch::new(*cpu);
    let mut waited = false;
    loop {
        let turn = monitor.turn(pager);
        watch.back();
        if turn.remapped {
            wake::look_again();
        }
        if turn.read {
            // Where several threads waited, not all need be on the CPU of the one that is asked for.
            watch.won(waited && turn.threads < 2, turn.thread.filter(|_| !monitor.has_deferred()));
        } else {
            if waited {
                // The kernel tells of few of them: see watch.rs.
                pager.counters().monitor_wakeups_vain.fetch_add(1, Ordering::Relaxed);
                if !monitor.has_deferred() {
                    watch.lost();
                }
            }
            monitor.wait(pager, watch.patience());
        }
        waited = !turn.read;
        if pager.wants_reclaimer() {
            wake::wake_if_asleep();
        }
    }
}
