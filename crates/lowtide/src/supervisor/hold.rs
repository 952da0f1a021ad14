//! Holds the threads of a process that grows faster than it can be looked after, by ptrace, until there is room.
//!
//! A program with hooks waits in its calls and faults when memory is short. What one without them maps is found by looking; until
//! then it touches it unseen, at the speed of memory. So where it has passed the limit like that, its reclaimer asks for its
//! threads to be held ([`Segment::ask_to_hold`]), evicts, and has them let go. A thread of their own holds them, because who traces
//! is one thread. It waits for no stop: the thread of the event loop takes these with all others that it waits for, and they mean
//! nothing to it. Threads that end while they are held it buries, lest their process could not be.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lowtide_config::proc::Stat;
use lowtide_pager::segment::{Proc, Segment, Settings, proc_state};
use rustix::fd::OwnedFd;
use rustix::process::Pid;
use rustix::thread::Timespec;

use super::ancestry;
use super::enter::{hold_thread, is_executing, let_run, may_be_traced};

/// A process is held for so long at most; then it runs until its reclaimer asks again.
const LONGEST: Duration = Duration::from_millis(100);
/// While one is held it is looked so often at least which of its threads run, ...
const EVERY: Duration = Duration::from_micros(500);
/// ... but with a pause of so many times as long as a look takes.
const REST: u32 = 4;
/// Where only threads are left that are to go on as soon as they stop.
const LEAVING_EVERY: Duration = Duration::from_millis(5);
/// More threads of a process are not held.
const MOST: usize = 1024;
const STACK: usize = 64 << 10;
/// Threads that the kernel has made for its own work in the process (PF_IO_WORKER, PF_USER_WORKER).
const WORKERS: u64 = 0x10 | 0x4000;

/// A process whose threads are held.
struct Held {
    place: usize,
    process: u32,
    member: OwnedFd,
    since: Instant,
    threads: Vec<Pid>,
}

/// Threads that are to go on, once they have stopped, and their processes.
type Leaving = Vec<(Pid, Pid)>;

/// The thread that holds, which most runs don't need. It ends with this process.
#[derive(Default)]
pub struct Holder {
    has_begun: bool,
}

impl Holder {
    /// Starts the thread if there is a process without hooks, or one has asked, and it was not started yet.
    ///
    /// # Errors
    /// There can't be one more: such programs pass the limit further. It is not tried again.
    pub fn look(&mut self, segment: &'static Segment, settings: &'static Settings) -> io::Result<()> {
        // (Where a C library with hooks can't be changed, that is seen when it asks.)
        let is_needed = || segment.holds() > 0 || segment.used_procs().iter().any(Proc::forks_unseen);
        if self.has_begun || !is_needed() {
            return Ok(());
        }
        self.has_begun = true;
        let thread = std::thread::Builder::new().name("lowtide-hold".to_owned()).stack_size(STACK);
        thread.spawn(move || run(segment, settings)).map(drop)
    }
}

fn run(segment: &Segment, settings: &Settings) -> ! {
    let (mut held, mut leaving, mut looked) = (Vec::<Held>::new(), Leaving::new(), None);
    loop {
        let (seen, started) = (segment.holds(), Instant::now());
        let is_above = segment.ram_roughly() > settings.ram_limit.load(Ordering::Relaxed);
        if looked != Some(seen) {
            looked = Some(seen);
            begin(segment, is_above, &mut held);
        }
        held.retain_mut(|held| {
            let proc = &segment.procs[held.place];
            let is_it = process(proc) == held.process && ancestry::is_alive(&held.member);
            let stays = is_above && is_asked(proc) && is_it && held.since.elapsed() < LONGEST;
            if stays {
                hold(held, proc, &mut leaving);
            } else {
                let of = Pid::from_raw(held.process as i32);
                leaving.extend(held.threads.drain(..).map(|thread| (of.unwrap_or(thread), thread)));
                // Its reclaimer asks again, if it is still so.
                segment.ask_to_hold(proc, false);
            }
            stays
        });
        leaving.retain(|(process, thread)| !let_run(*process, *thread));
        let pause = match (held.is_empty(), leaving.is_empty()) {
            (true, true) => None,
            (true, false) => Some(LEAVING_EVERY),
            (false, _) => Some(EVERY.max(started.elapsed() * REST)),
        };
        let pause = pause.map(|pause| Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) });
        segment.wait_for_holds(seen, pause.as_ref());
    }
}

/// Begins with the processes that have asked.
fn begin(segment: &Segment, is_above: bool, held: &mut Vec<Held>) {
    for (place, proc) in segment.used_procs().iter().enumerate() {
        if !proc.is_to_be_held() || held.iter().any(|held| held.place == place) {
            continue;
        }
        let process = process(proc);
        // What stands there a process of the run has written.
        let member = (is_above && is_asked(proc) && may_be_traced(process) == Some(process))
            .then(|| ancestry::member(process))
            .flatten();
        match member {
            Some(member) => held.push(Held { place, process, member, since: Instant::now(), threads: Vec::new() }),
            None => segment.ask_to_hold(proc, false),
        }
    }
}

fn process(proc: &Proc) -> u32 {
    proc.pid.load(Ordering::Relaxed)
}

fn is_asked(proc: &Proc) -> bool {
    proc.is_to_be_held() && proc.state.load(Ordering::Acquire) == proc_state::ACTIVE && !proc.is_elsewhere()
}

/// Holds the threads of a process that run: only those grow.
fn hold(held: &mut Held, proc: &Proc, leaving: &mut Leaving) {
    // One that was just being started was not known yet.
    let own: Vec<u32> = proc.threads().collect();
    let is_own = |thread: Pid| own.contains(&(thread.as_raw_pid() as u32));
    let process = Pid::from_raw(held.process as i32);
    leaving.extend(held.threads.extract_if(.., |thread| is_own(*thread)).filter_map(|thread| Some((process?, thread))));
    let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", held.process)) else { return };
    let ids = threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
    for id in ids {
        let Some(thread) = i32::try_from(id).ok().and_then(Pid::from_raw) else { continue };
        if held.threads.len() >= MOST || held.threads.contains(&thread) || is_own(thread) {
            continue;
        }
        // Who begins to trace a process that is executing a program waits for that.
        if is_executing(id) {
            return;
        }
        let runs = Stat::of_thread(held.process, id).is_some_and(|stat| stat.state == 'R' && stat.flags & WORKERS == 0);
        // While its process lives, the number was that of its thread.
        if runs && ancestry::is_alive(&held.member) && hold_thread(thread).is_ok() {
            held.threads.push(thread);
        }
    }
}
