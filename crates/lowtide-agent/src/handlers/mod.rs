//! The fault handler threads. When a thread blocks on a missing page, the handler of its CPU or
//! group of CPUs (`cpus.rs`) runs there at once, and no other CPU wakes (`polling.rs`). A CPU gets
//! a handler only when a thread waits there: each takes memory. There are at most as many handlers
//! as program threads, which wait for one page each; then an idle one moves to the CPU that needs
//! it. The pager's handler.rs does the work.

pub mod cpus;
mod delivery;
pub mod descriptors;
pub mod fault_ring;
pub mod in_thread;
pub mod kept;
pub mod polling;

use alloc::boxed::Box;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use lowtide_core::cpu_groups;
use lowtide_pager::fault::Handler;
use lowtide_pager::pager::Pager;
use rustix::io::Errno;
use rustix::thread::{futex, sched_yield};

use crate::handlers::cpus::MAX_POSTS;
use crate::handlers::delivery::Delivery;
use crate::handlers::polling::Watch;
use crate::process::{agent, say, thread};
use crate::reclaimer::wake;

/// One serves, one is free to move to another CPU.
const FIRST: usize = 2;
const SLACK_NS: u64 = 1_000;

static GO: AtomicU32 = AtomicU32::new(0);
/// Time of the next attempt after a failure, in microseconds, or 0. The reclaimer's alone.
static RETRY_US: AtomicU64 = AtomicU64::new(0);
const RETRY_AFTER_US: u64 = 100_000;
const MOST_LOOKS: usize = 10_000;

/// Made by the reclaimer: a fork does not wait for handlers, so none may allocate.
struct Start {
    number: usize,
    handler: Handler,
}

static STARTED: [AtomicPtr<Start>; MAX_POSTS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_POSTS];

/// Frees what the parent's handlers had, in a forked child.
///
/// # Safety
/// This process has no handlers.
pub unsafe fn forget_parents() {
    for started in &STARTED {
        let start = started.swap(core::ptr::null_mut(), Ordering::Relaxed);
        if !start.is_null() {
            // SAFETY: a box of `start_at` that only its handler had. It owns what it owned when
            // made, whatever the handler was doing.
            drop(unsafe { Box::from_raw(start) });
        }
    }
}

/// Starts a few, which wait for [`go`]. For the reclaimer.
///
/// # Errors
/// None could be started.
pub fn start() -> Result<(), Errno> {
    GO.store(0, Ordering::Relaxed);
    RETRY_US.store(0, Ordering::Relaxed);
    polling::reset();
    cpus::look();
    let (mut result, mut room) = (Err(Errno::SRCH), first());
    for post in cpu_groups::at_first(agent::pid(), cpus::posts(), first()) {
        result = match (start_at(post, &mut room), result) {
            (Err(error), Err(_)) => Err(error),
            _ => Ok(()),
        };
    }
    polling::count_missing();
    result
}

fn first() -> usize {
    #[cfg(feature = "faults")]
    if let Some(first) = lowtide_core::faults::first_handlers() {
        return first;
    }
    FIRST
}

/// How many more may start: with many CPUs, single-threaded processes would otherwise spend most
/// memory on handlers. For the reclaimer.
fn room() -> usize {
    let threads = thread::others(agent::proc().own_threads()).unwrap_or(MAX_POSTS);
    threads.max(first()).saturating_sub(polling::threads().filter(|thread| *thread != 0).count())
}

/// Retries later if memory or threads are short, or there are enough. For the reclaimer.
pub fn start_wanted(pager: &Pager, now_us: u64) {
    // A fork must not copy a changing heap.
    if pager.paused() {
        return;
    }
    let retry_us = RETRY_US.load(Ordering::Relaxed);
    if retry_us != 0 && now_us >= retry_us {
        RETRY_US.store(0, Ordering::Relaxed);
        polling::count_missing();
    }
    if !polling::any_wanted() {
        return;
    }
    let mut wanted = polling::take_wanted();
    if now_us < retry_us {
        return;
    }
    let mut room = room();
    // If one can't start, others can't either: they are requested again.
    if wanted.any(|post| start_at(post, &mut room).is_err()) {
        polling::want_none();
        RETRY_US.store(now_us + RETRY_AFTER_US, Ordering::Relaxed);
    } else {
        polling::count_missing();
    }
}

pub fn follow_cpus() {
    if cpus::look() {
        polling::posts_have_changed();
        polling::count_missing();
    }
}

/// Takes one from `room`.
fn start_at(post: usize, room: &mut usize) -> Result<(), Errno> {
    let number = polling::number_at(post);
    if polling::is_started(number) {
        return Ok(());
    }
    *room = room.checked_sub(1).ok_or(Errno::AGAIN)?;
    let start = Box::into_raw(Box::new(Start { number, handler: Handler::new()? }));
    match agent::proc().starts_thread(|| thread::spawn(run, start.expose_provenance())) {
        Ok(thread) => {
            polling::starts(number, thread);
            STARTED[number].store(start, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => {
            // SAFETY: made here, and no thread has it.
            drop(unsafe { Box::from_raw(start) });
            Err(error)
        }
    }
}

/// Not for the reclaimer. False while a thread of lowtide's starts for long. (Others may write what
/// is counted.)
pub fn program_is_alone() -> bool {
    for _ in 0..MOST_LOOKS {
        if let Some(is_alone) = agent::proc().steadily(thread::has_one) {
            return is_alone;
        }
        sched_yield();
    }
    false
}

pub fn go() {
    // Release: pairs with the Acquire in `run`. The pager is set.
    GO.store(1, Ordering::Release);
    let _ = futex::wake(&GO, futex::Flags::PRIVATE, i32::MAX as u32);
}

extern "C" fn run(start: usize) -> ! {
    thread::name(c"lowtide-handler");
    // SAFETY: the box that `start_at` made for this thread alone, never freed by it.
    let Start { number, handler } = unsafe { &mut *core::ptr::with_exposed_provenance_mut::<Start>(start) };
    polling::starts(*number, thread::id());
    polling::pin(*number);
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(SLACK_NS));
    // Acquire: pairs with the Release in `go`.
    while GO.load(Ordering::Acquire) == 0 {
        let _ = futex::wait(&GO, futex::Flags::PRIVATE, 0, None);
    }
    let Some(pager) = agent::pager() else { say::fatal(b"a fault handler has no pager") };
    let mut watch = Watch::new(*number);
    let mut waited = false;
    loop {
        let turn = Delivery::now().next(pager, handler);
        watch.back();
        if turn.remapped {
            wake::look_again();
        }
        if turn.read {
            // If several threads waited, this one's CPU says little.
            let thread = turn.thread.filter(|_| !handler.has_deferred());
            watch.won(waited && turn.threads < 2, thread, || handler.rests());
        } else {
            if waited {
                pager.counters().monitor_wakeups_vain.fetch_add(1, Ordering::Relaxed);
                if !handler.has_deferred() {
                    watch.lost(|| handler.rests());
                }
            }
            Delivery::now().wait(pager, handler, watch.patience());
        }
        waited = !turn.read;
        if pager.wants_reclaimer() {
            wake::wake_if_asleep();
        }
    }
}
