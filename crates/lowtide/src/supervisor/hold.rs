//! Holds the threads of a fast-growing process by ptrace until there is room.
//!
//! A program with hooks waits in its calls and faults when memory is short. A scan finds the
//! mappings of one without hooks; until then it touches them unobserved, at memory speed. If that
//! takes it past the limit, its reclaimer asks for a hold ([`Segment::ask_to_hold`]), evicts, and
//! ends the hold.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lowtide_config::proc::{Stat, as_pid};
use lowtide_wire::segment::{Proc, Segment, proc_state};
use rustix::fd::OwnedFd;
use rustix::process::Pid;

use super::ancestry;
use super::enter::{hold_thread, is_executing, may_be_traced};
use super::holder::Leaving;

/// Longest hold; after it the process runs until its reclaimer asks again.
const LONGEST: Duration = Duration::from_millis(100);
const MOST: usize = 1024;
/// Kernel workers in the process (PF_IO_WORKER, PF_USER_WORKER).
const WORKERS: u64 = 0x10 | 0x4000;

struct Held {
    place: usize,
    process: u32,
    member: OwnedFd,
    since: Instant,
    threads: Vec<Pid>,
}

/// The growing processes whose threads are held.
#[derive(Default)]
pub struct GrowthHolds(Vec<Held>);

impl GrowthHolds {
    /// Begins holds that were asked for since the last call. `is_above`: the run is above *high*.
    pub fn begin(&mut self, segment: &Segment, is_above: bool) {
        for (place, proc) in segment.used_procs().iter().enumerate() {
            if !proc.is_to_be_held() || self.0.iter().any(|held| held.place == place) {
                continue;
            }
            let process = pid_of(proc);
            // The slot's data may be false.
            let member = (is_above && is_asked(proc) && may_be_traced(process) == Some(process))
                .then(|| ancestry::member(process))
                .flatten();
            match member {
                Some(member) => self.0.push(Held { place, process, member, since: Instant::now(), threads: Vec::new() }),
                None => segment.ask_to_hold(proc, false),
            }
        }
    }

    /// Holds threads that run, or ends holds: their threads go into `leaving`. False: nothing is
    /// held.
    pub fn look(&mut self, segment: &Segment, is_above: bool, leaving: &mut Leaving) -> bool {
        self.0.retain_mut(|held| {
            let proc = &segment.procs[held.place];
            let is_it = pid_of(proc) == held.process && ancestry::is_alive(&held.member);
            let stays = is_above && is_asked(proc) && is_it && held.since.elapsed() < LONGEST;
            if stays {
                hold(held, proc, leaving);
            } else {
                let of = as_pid(held.process);
                leaving.extend(held.threads.drain(..).map(|thread| (of.unwrap_or(thread), thread)));
                // The reclaimer asks again if it still needs the hold.
                segment.ask_to_hold(proc, false);
            }
            stays
        });
        !self.0.is_empty()
    }
}

pub fn pid_of(proc: &Proc) -> u32 {
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
