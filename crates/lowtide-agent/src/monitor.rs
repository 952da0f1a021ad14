//! The fault handler threads. When a thread of the program blocks on a missing page, the handler of its CPU, or of its group of
//! CPUs (`cpus.rs`), runs at once, with no other CPU to be woken in between. Those of other CPUs are not woken in vain
//! (`watch.rs`), and are not even started before a thread waits there: each takes memory, and a process that forks and ends
//! soon needs few. There are no more of them than threads of the program, which wait for one page each: where there are as many,
//! one that is not needed goes to the CPU where one is. What a handler does is the pager's monitor.rs.

use alloc::boxed::Box;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use lowtide_core::cpu_groups;
use lowtide_pager::fault::Monitor;
use lowtide_pager::pager::Pager;
use rustix::io::Errno;
use rustix::thread::{futex, sched_yield};

use crate::cpus::MAX_POSTS;
use crate::watch::{self, Watch};
use crate::{agent, cpus, in_thread, say, thread, told, wake};

/// With how many a process begins, and may have, however few threads it has: one serves, the other one is free to go to another
/// CPU.
const FIRST: usize = 2;
/// How late its naps may end, in nanoseconds (the kernel's own idea is 50 us).
const SLACK_NS: u64 = 1_000;

/// 1: they go to work.
static GO: AtomicU32 = AtomicU32::new(0);
/// When to try again where no more could be started, or there were enough, in microseconds; 0: none was refused. By the
/// reclaimer alone.
static RETRY_US: AtomicU64 = AtomicU64::new(0);
const RETRY_AFTER_US: u64 = 100_000;
/// One more when one is about to be started, and when it has been, and is known as lowtide's.
static STARTS: AtomicU32 = AtomicU32::new(0);

/// What a handler thread begins with. The reclaimer makes it: no fork may meet a handler that allocates, which is no operation
/// that a fork would wait for.
struct Start {
    number: usize,
    monitor: Monitor,
}

/// What those that were started began with, by number.
static STARTED: [AtomicPtr<Start>; MAX_POSTS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_POSTS];

/// In a forked child: lets go of what its parent's handlers had.
///
/// # Safety
/// This process has no handlers.
pub unsafe fn forget_parents() {
    for started in &STARTED {
        let start = started.swap(core::ptr::null_mut(), Ordering::Relaxed);
        if !start.is_null() {
            // SAFETY: a box of `start_at`, which only its handler had. Whatever that was doing when the process forked: what it
            // owns it has owned since it was made.
            drop(unsafe { Box::from_raw(start) });
        }
    }
}

/// Starts some, for the others to be started when they are needed ([`start_wanted`]). They do nothing before [`go`]. By the
/// reclaimer.
///
/// # Errors
/// Not one could be started.
pub fn start() -> Result<(), Errno> {
    GO.store(0, Ordering::Relaxed);
    STARTS.store(0, Ordering::Relaxed);
    RETRY_US.store(0, Ordering::Relaxed);
    watch::reset();
    cpus::look();
    let (mut result, mut room) = (Err(Errno::SRCH), first());
    for post in cpu_groups::at_first(agent::pid(), cpus::posts(), first()) {
        result = match (start_at(post, &mut room), result) {
            (Err(error), Err(_)) => Err(error),
            _ => Ok(()),
        };
    }
    watch::count_missing();
    result
}

fn first() -> usize {
    #[cfg(feature = "faults")]
    if let Some(first) = lowtide_core::faults::first_handlers() {
        return first;
    }
    FIRST
}

/// How many more may be started. On many CPUs, many processes of one thread each would else come to have more memory in handlers
/// than in anything. By the reclaimer.
fn room() -> usize {
    let threads = thread::others(agent::proc().own_threads()).unwrap_or(MAX_POSTS);
    threads.max(first()).saturating_sub(watch::threads().filter(|thread| *thread != 0).count())
}

/// Starts those that were wanted where there is none. Where that can't be, for want of memory, because no more threads may be
/// there, or because there are enough, it is tried again after a while. By the reclaimer.
pub fn start_wanted(pager: &Pager, now_us: u64) {
    // A child's copy of the heap must not be one of a heap that changes.
    if pager.paused() {
        return;
    }
    let retry_us = RETRY_US.load(Ordering::Relaxed);
    if retry_us != 0 && now_us >= retry_us {
        RETRY_US.store(0, Ordering::Relaxed);
        watch::count_missing();
    }
    if !watch::any_wanted() {
        return;
    }
    let mut wanted = watch::take_wanted();
    if now_us < retry_us {
        return;
    }
    let mut room = room();
    // Where one can't be started, others can't: they are wanted again.
    if wanted.any(|post| start_at(post, &mut room).is_err()) {
        watch::want_none();
        RETRY_US.store(now_us + RETRY_AFTER_US, Ordering::Relaxed);
    } else {
        watch::count_missing();
    }
}

/// Follows the CPUs that the process may use, which somebody else may have changed. By the reclaimer, now and then.
pub fn follow_cpus() {
    if cpus::look() {
        watch::posts_have_changed();
        watch::count_missing();
    }
}

/// Starts one at a post, if there is none, of `room` that may be started; that is then one less.
fn start_at(post: usize, room: &mut usize) -> Result<(), Errno> {
    // Asked once: another one may be brought there at any time.
    let number = watch::number_at(post);
    if watch::is_started(number) {
        return Ok(());
    }
    *room = room.checked_sub(1).ok_or(Errno::AGAIN)?;
    let start = Box::into_raw(Box::new(Start { number, monitor: Monitor::new()? }));
    match spawn_known(run, start.expose_provenance()) {
        Ok(thread) => {
            watch::starts(number, thread);
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

/// Starts a thread that is known as lowtide's from the first moment at which anybody counts the program's ([`program_is_alone`]).
/// By the reclaimer.
///
/// # Errors
/// Those of [`thread::spawn`].
pub fn spawn_known(f: extern "C" fn(usize) -> !, arg: usize) -> Result<u32, Errno> {
    // Release, here and below: pairs with the Acquire in `program_is_alone`.
    STARTS.fetch_add(1, Ordering::Release);
    let thread = thread::spawn(f, arg).inspect(|thread| agent::counts(*thread));
    STARTS.fetch_add(1, Ordering::Release);
    thread
}

/// Whether the program has one thread only. Not by the reclaimer.
pub fn program_is_alone() -> bool {
    loop {
        let starts = STARTS.load(Ordering::Acquire);
        let is_alone = thread::has_one(agent::proc().own_threads());
        // Else one was counted among the threads and not among lowtide's, or the other way round.
        if starts.is_multiple_of(2) && STARTS.load(Ordering::Acquire) == starts {
            return is_alone;
        }
        sched_yield();
    }
}

/// The handlers go to work: there is a pager.
pub fn go() {
    // Release: pairs with the Acquire in `run`. The pager is set.
    GO.store(1, Ordering::Release);
    let _ = futex::wake(&GO, futex::Flags::PRIVATE, i32::MAX as u32);
}

extern "C" fn run(start: usize) -> ! {
    thread::name(c"lowtide-monitor");
    // SAFETY: the box that `start_at` made for this thread alone, which never frees it.
    let Start { number, monitor } = unsafe { &mut *core::ptr::with_exposed_provenance_mut::<Start>(start) };
    watch::starts(*number, thread::id());
    // Without these it floats, or naps longer: slower, not wrong.
    watch::pin(*number);
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(SLACK_NS));
    // Acquire: pairs with the Release in `go`.
    while GO.load(Ordering::Acquire) == 0 {
        let _ = futex::wait(&GO, futex::Flags::PRIVATE, 0, None);
    }
    let Some(pager) = agent::pager() else { say::fatal(b"a monitor has nothing to watch") };
    let mut watch = Watch::new(*number);
    let mut waited = false;
    loop {
        let turn = match told::active() {
            None => monitor.turn(pager),
            Some(told) => {
                let reads = told.must_read(pager) || monitor.wants_to_read(pager);
                let turn = monitor.turn_with(pager, told.take(pager), reads);
                if let Some(stack) = told.missing_stack() {
                    in_thread::make_stack(pager, monitor, stack);
                }
                turn
            }
        };
        watch.back();
        if turn.remapped {
            wake::look_again();
        }
        if turn.read {
            // Where several threads waited, not all need be on the CPU of the one that is asked for.
            let thread = turn.thread.filter(|_| !monitor.has_deferred());
            watch.won(waited && turn.threads < 2, thread, || monitor.rests());
        } else {
            if waited {
                // The kernel tells of few of them: see watch.rs.
                pager.counters().monitor_wakeups_vain.fetch_add(1, Ordering::Relaxed);
                if !monitor.has_deferred() {
                    watch.lost(|| monitor.rests());
                }
            }
            match told::active() {
                None => monitor.wait(pager, watch.patience()),
                Some(told) => {
                    let is_read = monitor.wants_to_read(pager);
                    monitor.wait_by(pager, watch.patience(), |time| told.wait(pager, is_read, time));
                }
            }
        }
        waited = !turn.read;
        if pager.wants_reclaimer() {
            wake::wake_if_asleep();
        }
    }
}
