//! Monitors are SCHED_IDLE: a CPU that runs nothing else counts as idle for the scheduler, so the thread that a monitor wakes
//! stays on its CPU and runs at once, and nobody is pushed aside by a monitor. The price is that other programs, which keep
//! all CPUs busy, would starve them. So a thread of normal priority, which does nothing while nothing happens, looks every millisecond in which
//! faults come whether one waits and none was served since the last look. If so, monitors are threads like any other for a while.
//!
//! Only where a thread may leave SCHED_IDLE again (CAP_SYS_NICE, or RLIMIT_NICE of 20): elsewhere monitors stay what they are.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lowtide_pager::clock::now_us;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, Timespec, capabilities, futex, gettid, nanosleep};

use crate::monitor::MAX_MONITORS;
use crate::{agent, thread, watch};

/// Thread ids of the monitors; 0: none.
static MONITORS: [AtomicU32; MAX_MONITORS] = [const { AtomicU32::new(0) }; MAX_MONITORS];
/// Messages that monitors have dealt with; wraps.
static SERVED: AtomicU64 = AtomicU64::new(0);
/// 1: there is a pager to look at.
static GO: AtomicU32 = AtomicU32::new(0);

/// How often it looks while faults come.
const LOOK_NS: i64 = 1_000_000;
/// Looks without a message after which it waits for one.
const QUIET_LOOKS: u32 = 20;
/// For how long monitors are normal then, in microseconds, at first and at most: twice as long each time that follows soon.
const LEAST_US: u64 = 20_000;
const MOST_US: u64 = 1_000_000;

/// Before monitors start.
pub fn reset() {
    GO.store(0, Ordering::Relaxed);
    MONITORS.iter().for_each(|monitor| monitor.store(0, Ordering::Relaxed));
}

/// Called by each monitor for itself.
pub fn join() {
    let me = gettid().as_raw_nonzero().get() as u32;
    let _ = MONITORS.iter().find(|place| place.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok());
}

/// Their thread ids; 0: none.
pub fn monitors() -> impl Iterator<Item = u32> {
    MONITORS.iter().map(|monitor| monitor.load(Ordering::Relaxed))
}

/// A message was dealt with.
pub fn served() {
    SERVED.fetch_add(1, Ordering::Relaxed);
}

/// Starts the thread that looks. Where that is not possible, or monitors could not be made normal again, they are never idle.
pub fn start() {
    let may_return = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE))
        || getrlimit(Resource::Nice).current.is_none_or(|limit| limit >= 20);
    if may_return {
        let _ = thread::spawn(run, 0);
    }
}

/// There is a pager.
pub fn go() {
    GO.store(1, Ordering::Release);
    let _ = futex::wake(&GO, futex::Flags::PRIVATE, i32::MAX as u32);
}

fn set_all(policy: thread::Policy) {
    for monitor in &MONITORS {
        match monitor.load(Ordering::Acquire) {
            0 => {}
            tid => policy.give(tid),
        }
    }
}

extern "C" fn run(_: usize) -> ! {
    thread::name(c"lowtide-watch");
    while GO.load(Ordering::Acquire) == 0 {
        let _ = futex::wait(&GO, futex::Flags::PRIVATE, 0, None);
    }
    let Some(pager) = agent::pager() else { crate::say::fatal(b"nothing to watch") };
    set_all(thread::Policy::Idle);
    let (mut last, mut quiet, mut stuck) = (SERVED.load(Ordering::Relaxed), 0, 0);
    // Until when monitors are normal (0: they are idle), and for how long the next time.
    let (mut until, mut period, mut ended) = (0u64, LEAST_US, 0u64);
    loop {
        if quiet >= QUIET_LOOKS {
            pager.uffd().wait_readable(-1);
            quiet = 0;
        }
        let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: LOOK_NS });
        let now = now_us();
        let served = SERVED.load(Ordering::Relaxed);
        let waits = pager.is_waited_for();
        stuck = if served == last && waits { stuck + 1 } else { 0 };
        if stuck == 1 {
            // The only one that watches may be behind a thread of the program on its CPU.
            watch::call_all();
        }
        if stuck > 1 && until == 0 {
            period = if now.saturating_sub(ended) < period * 2 { (period * 2).min(MOST_US) } else { LEAST_US };
            until = now + period;
            set_all(thread::Policy::Normal);
        } else if until != 0 && now >= until {
            (until, ended) = (0, now);
            set_all(thread::Policy::Idle);
        }
        quiet = if served == last && !waits && until == 0 { quiet + 1 } else { 0 };
        last = served;
    }
}
