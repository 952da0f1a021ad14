//! Finds forked children that are copies of their parents and have no agent: children of processes
//! without hooks, and children of bare system calls that bypass the hooks. A copy seen at two looks
//! in a row is entered in the middle of what it does; most are about to execute a program and are
//! gone by then. If entering fails, lowtide warns and counts the copy.

use super::Entering;
use super::entering::is_executing;
use super::executed;
use super::following::{is_confined, may_be_traced};
use crate::host::privilege;
use crate::supervisor::kept::is_watched;
use crate::supervisor::{ancestry, cpu_clock};
use lowtide_config::proc::{self, Stat, Status, as_pid};
use lowtide_wire::segment::{Proc, Segment, proc_state};
use rustix::io::Errno;
use rustix::process::Pid;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const MEMORY: libc::c_int = 1;
/// The warning if processes of the run can't find the agent's file by its path.
const ABOVE: &str = "a forked child without an agent is not limited: where lowtide has capabilities that its program has not, it \
                     can't be entered";

/// The copy's filter could kill it for lowtide's system calls.
const CONFINED: &str = "a forked child without an agent is not limited: it has set up a system call filter";
const UNKNOWN: &str =
    "a forked child without an agent is not limited: the kernel does not say whether it shares its parent's memory";
const OTHERS: &str = "a forked child without an agent is not limited: it has another user, or is traced";

/// Least time between two looks for children made past hooks. A look also rests a multiple of its
/// own CPU time.
const PAST_HOOKS: Duration = Duration::from_millis(250);
const REST: u32 = 100;
/// CPU time of such a child before it counts as one without an agent: with less, its agent may
/// still be starting.
const COMES_TO_ITSELF: Duration = Duration::from_millis(50);

pub struct Copies {
    /// Processes without hooks, with their CPU time.
    parents: HashMap<u32, Duration>,
    waiting: Vec<Copy>,
    /// Children that this process had before the run.
    strangers: Vec<Copy>,
    /// Entered ones, and ones that can't be.
    done: Vec<Copy>,
    past_hooks: PastHooks,
}

struct PastHooks {
    look_at: Instant,
    /// As [`Copies::parents`] and [`Copies::waiting`].
    parents: HashMap<u32, Duration>,
    waiting: Vec<Copy>,
    /// Bytes of all copies that could not be entered.
    unlimited: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Copy {
    parent: u32,
    pid: u32,
    start: u64,
}

impl Copies {
    /// Call it before the run.
    pub fn new() -> Copies {
        let own = std::process::id();
        let past_hooks = PastHooks { look_at: Instant::now(), parents: HashMap::new(), waiting: Vec::new(), unlimited: 0 };
        Copies { parents: HashMap::new(), waiting: Vec::new(), strangers: copies(own, own), done: Vec::new(), past_hooks }
    }

    pub fn unlimited(&self) -> u64 {
        self.past_hooks.unlimited
    }

    /// Queues again a process that a signal such as ^Z stopped before lowtide could enter it.
    pub fn was_stopped(&mut self, pid: Pid) {
        if let Some(at) = self.done.iter().position(|copy| copy.pid == pid.as_raw_pid() as u32) {
            let copy = self.done.swap_remove(at);
            self.waiting_for(copy).push(copy);
        }
    }

    /// The list of the search that finds this copy.
    fn waiting_for(&mut self, copy: Copy) -> &mut Vec<Copy> {
        let is_orphan = copy.parent == std::process::id();
        let has_hooks = if is_orphan { !executed::has_no_hooks(copy.pid) } else { !self.parents.contains_key(&copy.parent) };
        if has_hooks { &mut self.past_hooks.waiting } else { &mut self.waiting }
    }

    /// Looks for copies and begins to trace those to be entered. Returns a warning for the user.
    pub fn look(&mut self, segment: &Segment, entering: &mut Entering) -> Option<String> {
        let mut again = self.of_processes_without_hooks(segment);
        again.extend(self.past_hooks(segment));
        let (own, mut warning) = (std::process::id(), None);
        for copy in again {
            match enter(copy, own, entering) {
                // It has stopped, is in an exec, or too many are traced.
                Err(None) => self.waiting_for(copy).push(copy),
                result => {
                    self.done.push(copy);
                    let name = || Stat::of(copy.pid).map_or_else(String::new, |stat| stat.name);
                    warning = warning.or(result.err().flatten().map(|why| format!("{why}: process {} ({})", copy.pid, name())));
                }
            }
        }
        warning
    }

    /// Those that the last look saw, too.
    fn of_processes_without_hooks(&mut self, segment: &Segment) -> Vec<Copy> {
        let without_hooks: Vec<u32> =
            used(segment).filter(|p| p.forks_unseen()).map(|p| p.pid.load(Ordering::Relaxed)).collect();
        if without_hooks.is_empty() && self.parents.is_empty() {
            return Vec::new();
        }
        let had = std::mem::take(&mut self.parents);
        let mut found = Vec::new();
        for parent in without_hooks {
            let Some(cpu) = as_pid(parent).and_then(cpu_clock::of) else { continue };
            self.parents.insert(parent, cpu);
            // A process without new CPU time has not forked.
            if had.get(&parent) != Some(&cpu) || self.waiting.iter().any(|copy| copy.parent == parent) {
                found.extend(copies_of(parent));
            }
        }
        // Orphans become this process's children.
        let own = std::process::id();
        found.extend(copies(own, own).into_iter().filter(|copy| executed::has_no_hooks(copy.pid)));
        found.retain(|copy| !has_agent(segment, copy.pid) && !self.done.contains(copy) && !self.strangers.contains(copy));
        self.done.retain(Copy::is_there);
        twice(&mut self.waiting, found)
    }

    /// The same for copies made past hooks by bare system calls. Most processes have none and there
    /// may be many processes, so this runs seldom.
    fn past_hooks(&mut self, segment: &Segment) -> Vec<Copy> {
        if Instant::now() < self.past_hooks.look_at {
            return Vec::new();
        }
        let before = cpu_clock::of_this_thread();
        let hooked = used(segment).filter(|p| !p.forks_unseen()).map(|p| p.pid.load(Ordering::Relaxed));
        // In another pid namespace the number means another process.
        let is_elsewhere = used(segment).any(Proc::is_elsewhere);
        let alone: Vec<Copy> = self.done.iter().filter(|copy| !has_agent(segment, copy.pid)).copied().collect();
        let had = std::mem::take(&mut self.past_hooks.parents);
        let own = std::process::id();
        let (done, strangers) = (&self.done, &self.strangers);
        let is_new = |copy: &Copy| !has_agent(segment, copy.pid) && !done.contains(copy) && !strangers.contains(copy);
        let orphans = copies(own, own).into_iter();
        let mut found: Vec<Copy> = orphans.filter(|copy| is_new(copy) && !executed::has_no_hooks(copy.pid)).collect();
        for parent in hooked.chain(alone.iter().map(|copy| copy.pid)) {
            let Some(cpu) = as_pid(parent).and_then(cpu_clock::of) else { continue };
            self.past_hooks.parents.insert(parent, cpu);
            if had.get(&parent) != Some(&cpu) || self.past_hooks.waiting.iter().any(|copy| copy.parent == parent) {
                found.extend(copies_of(parent));
            }
        }
        found.retain(|copy| is_new(copy) && !(is_elsewhere && copy.is_elsewhere()));
        // A child that shares a limited process's memory is counted there.
        let is_limited =
            |copy: &Copy| used(segment).any(|p| shares_memory(p.pid.load(Ordering::Relaxed), copy.pid) == Ok(true));
        let unlimited = alone.iter().filter(|copy| !is_limited(copy));
        self.past_hooks.unlimited = unlimited.map(|copy| proc::part_of_anonymous(copy.pid)).sum();
        let again = twice(&mut self.past_hooks.waiting, found);
        let (again, wait): (Vec<Copy>, Vec<Copy>) = again.into_iter().partition(Copy::has_run);
        self.past_hooks.waiting.extend(wait);
        let took = cpu_clock::of_this_thread().saturating_sub(before);
        self.past_hooks.look_at = Instant::now() + PAST_HOOKS.max(took * REST);
        again
    }
}

impl Copy {
    fn is_there(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.start == self.start)
    }

    fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.start == self.start && stat.is_alive())
    }

    fn has_run(&self) -> bool {
        as_pid(self.pid).and_then(cpu_clock::of).is_some_and(|cpu| cpu >= COMES_TO_ITSELF)
    }

    /// Whether the process has another pid in its own namespace.
    fn is_elsewhere(&self) -> bool {
        Status::of(self.pid).is_some_and(|status| status.value("NSpid") != Some(self.pid.to_string().as_str()))
    }
}

fn used(segment: &Segment) -> impl Iterator<Item = &Proc> {
    segment.used_procs().iter().filter(|p| p.state.load(Ordering::Acquire) >= proc_state::WATCHING)
}

fn has_agent(segment: &Segment, pid: u32) -> bool {
    used(segment).any(|p| p.pid.load(Ordering::Relaxed) == pid)
}

/// Members of `found` that `waiting` already had; the rest becomes the new `waiting`.
fn twice(waiting: &mut Vec<Copy>, found: Vec<Copy>) -> Vec<Copy> {
    let (again, new): (Vec<Copy>, Vec<Copy>) =
        found.into_iter().partition(|copy| waiting.iter().any(|seen| (seen.pid, seen.start) == (copy.pid, copy.start)));
    *waiting = new;
    again
}

/// The copies made by all threads of a process.
fn copies_of(parent: u32) -> Vec<Copy> {
    proc::threads(parent).unwrap_or_default().iter().flat_map(|thread| copies(parent, *thread)).collect()
}

/// Begins to trace a copy, unless it has ended. Err(Some): why it never can be; Err(None): not now.
fn enter(copy: Copy, own: u32, entering: &mut Entering) -> Result<(), Option<&'static str>> {
    // The kernel answers EPERM for a zombie, as for another user's process.
    begin(copy, own, entering).or_else(|why| if copy.is_alive() { Err(why) } else { Ok(()) })
}

fn begin(copy: Copy, own: u32, entering: &mut Entering) -> Result<(), Option<&'static str>> {
    match shares_memory(copy.parent, copy.pid) {
        Ok(false) => {}
        Ok(true) | Err(Errno::SRCH) => return Ok(()),
        Err(Errno::PERM) => return Err(Some(OTHERS)),
        Err(_) => return Err(Some(UNKNOWN)),
    }
    if privilege::is_above_program() {
        return Err(Some(ABOVE));
    }
    let Some(stat) = Stat::of(copy.pid) else { return Ok(()) };
    if matches!(stat.state, 'T' | 't') || is_executing(copy.pid) || !entering.has_room() || entering.traces(copy.pid) {
        return Err(None);
    }
    if is_confined(copy.pid, copy.parent, copy.parent == own) {
        return Err(Some(CONFINED));
    }
    // The segment's data may be false.
    if may_be_traced(copy.pid).is_none() || ancestry::belongs(copy.pid) != Some(true) {
        return Err(Some(OTHERS));
    }
    // That memory has or had lowtide's threads, and its missing pages exist nowhere else.
    if is_sharer(copy.pid) || is_watched(copy.pid, None) {
        return Ok(());
    }
    match entering.copy(copy.pid, copy.start, copy.parent) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(Errno::AGAIN) => Err(None),
        Err(_) => Err(Some(OTHERS)),
    }
}

/// Children of a thread that apparently have memory of their own and have executed nothing.
fn copies(parent: u32, thread: u32) -> Vec<Copy> {
    let text = proc::read(format!("/proc/{parent}/task/{thread}/children")).unwrap_or_default();
    let text = String::from_utf8(text).unwrap_or_default();
    let pids = text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter_map(|pid| {
        let stat = Stat::of(pid).filter(|stat| stat.is_copy_of_its_parent() && stat.is_alive())?;
        (shares_memory(parent, pid) != Ok(true)).then_some(Copy { parent, pid, start: stat.start })
    })
    .collect()
}

/// Whether another process shares this one's memory. Its maker may be another process than its
/// parent (CLONE_PARENT), or gone.
fn is_sharer(pid: u32) -> bool {
    proc::all().iter().any(|other| other.pid != pid && shares_memory(other.pid, pid) == Ok(true))
}

/// Whether two processes share their memory, as after vfork.
///
/// # Errors
/// `PERM`: this process may not trace one of them. `NOSYS`: the kernel has no kcmp.
fn shares_memory(one: u32, other: u32) -> Result<bool, Errno> {
    // SAFETY: kcmp touches no memory.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, MEMORY, 0, 0) } {
        0 => Ok(true),
        order if order > 0 => Ok(false),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_forbids_what_has_ended_as_it_forbids_others() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (own, pid) = (std::process::id(), child.id());
        let copy = Copy { parent: own, pid, start: Stat::of(pid).unwrap().start };
        assert!(copy.is_alive());
        child.kill().unwrap();
        while Stat::of(pid).unwrap().is_alive() {
            std::thread::yield_now();
        }
        assert_eq!(Entering::default().copy(pid, copy.start, own), Err(Errno::PERM));
        assert!(copy.is_there() && !copy.is_alive());
        assert_eq!(enter(copy, own, &mut Entering::default()), Ok(()));
        child.wait().unwrap();
        assert!(!copy.is_there());
    }

    #[test]
    fn who_shares_memory_is_known() {
        let own = std::process::id();
        assert_eq!(shares_memory(own, own), Ok(true));
        assert!(!is_sharer(own));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(shares_memory(own, child.id()), Ok(false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(shares_memory(own, child.id()), Err(Errno::SRCH));
    }
}
