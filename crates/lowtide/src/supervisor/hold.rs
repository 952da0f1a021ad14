//! Holds the threads of a process that grows faster than it can be looked after, by ptrace, until there is room.
//!
//! A program with hooks waits in its calls and faults when memory is short. What one without them maps is found by looking; until
//! then it touches it unseen, at the speed of memory. So where it has passed the limit like that, its reclaimer asks for its
//! threads to be held ([`Segment::ask_to_hold`]), evicts, and has them let go. A thread of their own holds them, because who traces
//! is one thread. It waits for no stop: the thread of the event loop takes these with all others that it waits for, and they mean
//! nothing to it.

use std::time::{Duration, Instant};

use lowtide_config::proc::Stat;
use lowtide_pager::segment::{Proc, Segment, Settings, proc_state};
use rustix::fd::OwnedFd;
use rustix::process::Pid;
use rustix::thread::Timespec;
use std::sync::atomic::Ordering;

use super::ancestry;
use super::enter::{hold_thread, let_run};

/// A process is held for so long at most; then it runs until its reclaimer asks again.
const LONGEST: Duration = Duration::from_millis(100);
/// While one is held it is looked so often which of its threads run, and which have stopped that are to go on.
const EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000 };
/// More threads of a process are not held.
const MOST: usize = 1024;
const STACK: usize = 64 << 10;

/// A process whose threads are held.
struct Held {
    place: usize,
    process: u32,
    member: OwnedFd,
    since: Instant,
    threads: Vec<Pid>,
}

/// Starts the thread that holds, which ends with this process.
///
/// # Errors
/// There can't be one more: such programs pass the limit further.
pub fn start(segment: &'static Segment, settings: &'static Settings) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("lowtide-hold".to_owned()).stack_size(STACK);
    thread.spawn(move || run(segment, settings)).map(drop)
}

fn run(segment: &Segment, settings: &Settings) -> ! {
    let (mut held, mut leaving) = (Vec::<Held>::new(), Vec::<Pid>::new());
    loop {
        let seen = segment.holds();
        let is_above = segment.ram_roughly() > settings.ram_limit.load(Ordering::Relaxed);
        for (place, proc) in segment.used_procs().iter().enumerate() {
            if !is_above || !is_asked(proc) || held.iter().any(|held| held.place == place) {
                continue;
            }
            // What stands there a process of the run has written.
            match ancestry::member(process(proc)) {
                Some(member) => {
                    held.push(Held { place, process: process(proc), member, since: Instant::now(), threads: Vec::new() });
                }
                None => segment.ask_to_hold(proc, false),
            }
        }
        held.retain_mut(|held| {
            let proc = &segment.procs[held.place];
            let is_it = process(proc) == held.process && ancestry::is_alive(&held.member);
            let stays = is_above && is_asked(proc) && is_it && held.since.elapsed() < LONGEST;
            if stays {
                hold(held, proc);
            } else {
                leaving.append(&mut held.threads);
                // Its reclaimer asks again, if it is still so.
                segment.ask_to_hold(proc, false);
            }
            stays
        });
        leaving.retain(|thread| !let_run(*thread));
        let is_idle = held.is_empty() && leaving.is_empty();
        segment.wait_for_holds(seen, (!is_idle).then_some(&EVERY));
    }
}

fn process(proc: &Proc) -> u32 {
    proc.pid.load(Ordering::Relaxed)
}

fn is_asked(proc: &Proc) -> bool {
    proc.is_to_be_held() && proc.state.load(Ordering::Acquire) == proc_state::ACTIVE && !proc.is_elsewhere()
}

/// Holds the threads of a process that run: only those grow.
fn hold(held: &mut Held, proc: &Proc) {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", held.process)) else { return };
    let ids = threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
    for id in ids.take(MOST) {
        let Some(thread) = i32::try_from(id).ok().and_then(Pid::from_raw) else { continue };
        if held.threads.contains(&thread) || proc.threads().any(|own| own == id) {
            continue;
        }
        let runs = Stat::of_thread(held.process, id).is_some_and(|stat| stat.state == 'R');
        // While its process lives, the number was that of its thread.
        if runs && ancestry::is_alive(&held.member) && hold_thread(thread).is_ok() {
            held.threads.push(thread);
        }
    }
}
