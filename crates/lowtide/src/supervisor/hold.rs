//! Holds the threads of a fast-growing process by ptrace until there is room.
//!
//! A program with hooks waits in its calls and faults when memory is short. A scan finds the
//! mappings of one without hooks; until then it touches them unobserved, at memory speed. If that
//! takes it past the limit, its reclaimer asks for a hold ([`Segment::ask_to_hold`]), evicts, and
//! ends the hold. A separate thread holds, because the kernel binds a tracer to its thread. It does
//! not wait for stops: the event loop's thread collects and ignores them. It reaps threads that end
//! while held, as otherwise their process could not end.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lowtide_config::proc::{Stat, as_pid};
use lowtide_wire::Watermarks;
use lowtide_wire::segment::{Proc, Segment, Settings, proc_state};
use rustix::fd::OwnedFd;
use rustix::process::Pid;
use rustix::thread::Timespec;

use super::ancestry;
use super::enter::{hold_thread, is_executing, let_run, may_be_traced};

/// Longest hold; after it the process runs until its reclaimer asks again.
const LONGEST: Duration = Duration::from_millis(100);
/// Shortest period of looking for running threads of a held process, ...
const EVERY: Duration = Duration::from_micros(500);
/// ... which is also at least this multiple of a look's duration.
const REST: u32 = 4;
/// The period while threads only remain to be released at their next stop.
const LEAVING_EVERY: Duration = Duration::from_millis(5);
const MOST: usize = 1024;
const STACK: usize = 64 << 10;
/// Kernel workers in the process (PF_IO_WORKER, PF_USER_WORKER).
const WORKERS: u64 = 0x10 | 0x4000;

struct Held {
    place: usize,
    process: u32,
    member: OwnedFd,
    since: Instant,
    threads: Vec<Pid>,
}

/// Processes and threads to release at their next stop.
type Leaving = Vec<(Pid, Pid)>;

/// The holding thread; most runs never start it. It ends with this process.
#[derive(Default)]
pub struct Holder {
    has_begun: bool,
}

impl Holder {
    /// Starts the thread once a process has no hooks, or has asked for a hold.
    ///
    /// # Errors
    /// No thread is left: such programs exceed the limit further. There is no second attempt.
    pub fn look(&mut self, segment: &'static Segment, settings: &'static Settings) -> io::Result<()> {
        // A C library whose code can't be hooked shows by its request.
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
        let is_above = segment.ram_roughly() > Watermarks::of(settings.ram_limit.load(Ordering::Relaxed)).high();
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
                let of = as_pid(held.process);
                leaving.extend(held.threads.drain(..).map(|thread| (of.unwrap_or(thread), thread)));
                // The reclaimer asks again if it still needs the hold.
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

fn begin(segment: &Segment, is_above: bool, held: &mut Vec<Held>) {
    for (place, proc) in segment.used_procs().iter().enumerate() {
        if !proc.is_to_be_held() || held.iter().any(|held| held.place == place) {
            continue;
        }
        let process = process(proc);
        // The slot's data may be false.
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

/// Holds the running threads: only those grow.
fn hold(held: &mut Held, proc: &Proc, leaving: &mut Leaving) {
    // A thread just started may not have been known yet.
    let own: Vec<u32> = proc.threads().collect();
    let is_own = |thread: Pid| own.contains(&(thread.as_raw_pid() as u32));
    let process = as_pid(held.process);
    leaving.extend(held.threads.extract_if(.., |thread| is_own(*thread)).filter_map(|thread| Some((process?, thread))));
    let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", held.process)) else { return };
    let ids = threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
    for id in ids {
        let Some(thread) = as_pid(id) else { continue };
        if held.threads.len() >= MOST || held.threads.contains(&thread) || is_own(thread) {
            continue;
        }
        // A seize of a process in an exec blocks until the exec is over.
        if is_executing(id) {
            return;
        }
        let runs = Stat::of_thread(held.process, id).is_some_and(|stat| stat.state == 'R' && stat.flags & WORKERS == 0);
        // The process lives, so the number was its thread's.
        if runs && ancestry::is_alive(&held.member) && hold_thread(thread).is_ok() {
            held.threads.push(thread);
        }
    }
}
