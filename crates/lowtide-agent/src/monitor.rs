//! Monitors: the threads that serve faults, one pinned to each CPU. When a thread of the program blocks on a missing page, the
//! monitor of its CPU runs at once, with no other CPU to be woken in between.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_pager::clock::now_ns;
use lowtide_pager::events::Read;
use lowtide_pager::evict::Evicted;
use lowtide_pager::fault::Served;
use lowtide_pager::pager::{Pager, Worker};
use lowtide_pager::segment::latency_bucket;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{agent, keeper, say, thread};

/// Most monitors: each fault wakes all of them, so more of them cost more.
const MAX_MONITORS: usize = 16;
/// Faults kept until a waiting event has been read; more are sent back to the kernel, which reports them again.
const DEFERRED: usize = 1024;

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
    let (Some(pager), Ok(mut worker)) = (agent::pager(), Worker::new(false)) else { say::fatal(b"no memory for a monitor") };
    let mut deferred = ArrayVec::<usize, DEFERRED>::new();
    loop {
        pager.uffd().wait_readable(if deferred.is_empty() { -1 } else { 1 });
        loop {
            match pager.read(&mut worker) {
                Read::Nothing => break,
                Read::Event => {}
                Read::Remapped => keeper::look_again(),
                // Reading takes the space lock alone; waiting tells as well whether there is more, and takes none.
                Read::Fault(addr) if deferred.is_empty() => {
                    if serve(pager, addr, &mut worker) == Served::EventsFirst {
                        deferred.push(addr);
                    }
                    break;
                }
                // The kernel reports all faults before an event: to serve them in vain would only keep the event waiting.
                Read::Fault(addr) => {
                    if deferred.try_push(addr).is_err() {
                        pager.uffd().wake(addr, 4096);
                    }
                }
            }
        }
        let served = deferred.iter().take_while(|addr| serve(pager, **addr, &mut worker) == Served::Done).count();
        deferred.drain(..served);
    }
}

fn serve(pager: &Pager, addr: usize, worker: &mut Worker) -> Served {
    let start = now_ns();
    if pager.budget.at_limit() && pager.evict(worker) == Evicted::Some {
        pager.counters().evictions_direct.fetch_add(1, Ordering::Relaxed);
    }
    let served = pager.serve(addr, worker);
    let took = now_ns() - start;
    let (proc, counters) = (pager.proc(), pager.counters());
    proc.latency[latency_bucket(took)].fetch_add(1, Ordering::Relaxed);
    counters.stall_some_us.fetch_add(took / 1000, Ordering::Relaxed);
    counters.latency_max_ns.fetch_max(took, Ordering::Relaxed);
    if pager.budget.above_high() {
        keeper::wake_if_asleep();
    }
    served
}
