//! Tracks the registered processes of a run, their memory and their ends, and stops them all.
//!
//! Any process of the run may have written the segment's data. So a registered process counts, and
//! is stopped, only if it descends from this one.

use crate::supervisor::cpu_alarm::CpuAlarm;
use crate::supervisor::{ancestry, cpu_clock};
use lowtide_config::proc::{Stat, as_pid};
use lowtide_core::store::{AreaState, MAX_AREAS};
use lowtide_wire::segment::{Audit, MAX_PROCS, Proc, Segment, proc_state};
use rustix::process::Signal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two looks with few processes, ...
const TICK: Duration = Duration::from_millis(25);
const FEW: usize = 32;
/// ... at most, ...
const LONG_TICK: Duration = Duration::from_millis(250);
/// ... and while slots get few: finding the dead sooner frees theirs sooner.
const SHORT_TICK: Duration = Duration::from_millis(10);
/// Zombie checks in one poll, among processes with new CPU time (dying takes some). Existence is
/// checked for all.
const EXAMINED: usize = 32;

/// New CPU time after which a process's reclaimer is woken: one that naps long because nothing
/// changed may be wrong by now. In that time a thread can touch one or two MiB.
const RUNS: Duration = Duration::from_micros(500);
/// A process with at most this part of the time since the last look is idle; a reclaimer with short
/// naps takes up to half of it.
const IDLE_PART: u32 = 50;
/// The same with registered memory, where the end of a nap takes longer.
const IDLE_PART_REGISTERED: u32 = 5;

#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)] // the names are those of `Proc`
pub struct Gauges {
    pub ram: u64,
    pub own: u64,
    pub staged: u64,
    pub pool: u64,
    pub pool_stored: u64,
    pub now_stored: u64,
    pub now_on_device: u64,
    pub registered: u64,
    pub areas: [AreaNow; MAX_AREAS],
}

#[derive(Debug, Clone, Copy, Default)]
pub struct AreaNow {
    pub used: u64,
    /// Count of processes by state of the area (takes pages, full, ...).
    pub states: [u32; AreaState::ALL.len()],
}

/// The process seen in a slot; the start time distinguishes it from a later one of the same pid.
#[derive(Default)]
struct Known {
    pid: u32,
    start: u64,
    /// Its CPU time when its reclaimer was last woken, ...
    woken: Duration,
    /// ... when it was last examined, ...
    examined: Duration,
    /// ... and at the last look.
    had: Duration,
    /// Signals activity of a process whose mappings are not counted, ...
    alarm: Option<CpuAlarm>,
    /// ... while set and not expired.
    is_set: bool,
}

pub struct Tree {
    segment: &'static Segment,
    audit: Audit,
    known: Vec<Known>,
    next_examined: usize,
    tick: Duration,
    polled: Instant,
    pids: Vec<u32>,
    gauges: Gauges,
    latest: Gauges,
    fullest: Gauges,
}

impl Tree {
    pub fn new(segment: &'static Segment) -> Tree {
        let gauges = Gauges::default();
        Tree {
            segment,
            audit: Audit::default(),
            known: Vec::new(),
            next_examined: 0,
            tick: TICK,
            polled: Instant::now(),
            pids: Vec::new(),
            gauges,
            latest: gauges,
            fullest: gauges,
        }
    }

    /// All processes seen registered, in that order, at most [`MAX_PROCS`].
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// The sums of the last poll that found registered memory (or of the last poll, before any
    /// did). They include a process that ended since the poll before, so at a run's end they are
    /// what its last managed process left behind.
    pub fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    pub fn now(&self) -> &Gauges {
        &self.latest
    }

    /// The sums of the poll with the most compressed bytes in the pool.
    pub fn fullest(&self) -> &Gauges {
        &self.fullest
    }

    /// When to look again: later with many processes, so that looks stay cheap; sooner when slots
    /// get few.
    pub fn tick(&self) -> Duration {
        let used = self.segment.used_procs();
        let taken = |p: &&Proc| p.state.load(Ordering::Relaxed) != proc_state::FREE;
        if used.len() > MAX_PROCS / 2 && used.iter().filter(taken).count() > MAX_PROCS / 2 {
            return SHORT_TICK;
        }
        self.tick
    }

    /// Takes the sums, updates the peak, reaps the dead, and wakes the reclaimers of running
    /// processes. (Over 70 lines: one look at each process.)
    pub fn poll(&mut self) {
        let mut now = Gauges { ram: self.audit.look(self.segment), ..Gauges::default() };
        let used = self.segment.used_procs();
        self.known.resize_with(used.len(), Known::default);
        now.own = self.segment.supervisor_bytes.load(Ordering::Relaxed);
        for p in used.iter().filter(|p| p.state.load(Ordering::Acquire) != proc_state::FREE) {
            let get = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
            let add = |sum: &mut u64, gauge| *sum = sum.saturating_add(get(gauge));
            add(&mut now.own, &p.own_bytes);
            // Without registered memory the other gauges are zero, and there may be many such
            // processes.
            if get(&p.adopted_bytes) == 0 && p.state.load(Ordering::Relaxed) == proc_state::WATCHING {
                continue;
            }
            add(&mut now.staged, &p.staged_bytes);
            add(&mut now.pool, &p.pool_bytes);
            add(&mut now.pool_stored, &p.pool_stored_bytes);
            add(&mut now.now_stored, &p.now_stored);
            add(&mut now.now_on_device, &p.now_on_device);
            add(&mut now.registered, &p.adopted_bytes);
            for (area, of) in now.areas.iter_mut().zip(&p.areas_now) {
                add(&mut area.used, &of.used);
                if let Some(count) = area.states.get_mut(get(&of.state) as usize) {
                    *count += 1;
                }
            }
        }
        self.latest = now;
        if now.registered > 0 || self.gauges.registered == 0 {
            self.gauges = now;
        }
        if now.pool_stored > self.fullest.pool_stored {
            self.fullest = now;
        }
        let since = std::mem::replace(&mut self.polled, Instant::now()).elapsed();
        let first = self.next_examined;
        let (mut left, mut living, mut reaped) = (EXAMINED, 0usize, false);
        for i in (first..used.len()).chain(0..first) {
            let p = &used[i];
            let pid = p.pid.load(Ordering::Relaxed);
            if p.state.load(Ordering::Acquire) < proc_state::WATCHING || pid == 0 {
                continue;
            }
            living += 1;
            match self.is_alive(i, pid, &mut left) {
                None => {
                    self.segment.reap(p);
                    self.known[i] = Known::default();
                    reaped = true;
                }
                Some(cpu) => {
                    if cpu.saturating_sub(self.known[i].woken) > RUNS {
                        self.known[i].woken = cpu;
                        p.ring();
                    }
                    if self.known[i].pid == pid {
                        self.set_alarm(i, cpu, since);
                    }
                }
            }
            // The next look begins with the ones left out.
            if left == 0 && self.next_examined == first {
                self.next_examined = i + 1;
            }
        }
        if left > 0 || self.next_examined >= used.len() {
            self.next_examined = 0;
        }
        // More may die soon.
        self.tick = if reaped { TICK } else { (TICK * living.div_ceil(FEW) as u32).clamp(TICK, LONG_TICK) };
    }

    /// Its CPU time; None: it is gone, or was never of this run. `left`: remaining zombie checks.
    fn is_alive(&mut self, slot: usize, pid: u32, left: &mut usize) -> Option<Duration> {
        let is_new = self.known[slot].pid != pid;
        if is_new && ancestry::belongs(pid) == Some(false) {
            return None;
        }
        if is_new && self.pids.len() < MAX_PROCS && !self.pids.contains(&pid) {
            self.pids.push(pid);
        }
        let cpu = cpu_clock::of(as_pid(pid)?)?;
        if !is_new && (*left == 0 || cpu == self.known[slot].examined) {
            return Some(cpu);
        }
        *left = left.saturating_sub(1);
        // It existed a moment ago. Unreadable proves nothing, and a reaped process loses its part
        // of other processes' swap files.
        let Some(stat) = Stat::of(pid) else { return Some(cpu) };
        if is_new {
            self.known[slot] = Known { pid, start: stat.start, woken: cpu, examined: cpu, ..Known::default() };
        }
        self.known[slot].examined = cpu;
        (stat.is_alive() && stat.start == self.known[slot].start).then_some(cpu)
    }

    /// Sets an alarm for a process whose mappings are not counted, so that its reclaimer wakes as
    /// soon as it runs. Only if it was idle in the time `since` the last look: an alarm permits
    /// long naps, and a running process would trigger it again and again.
    fn set_alarm(&mut self, slot: usize, cpu: Duration, since: Duration) {
        let (p, known) = (&self.segment.used_procs()[slot], &mut self.known[slot]);
        let state = p.state.load(Ordering::Relaxed);
        let idle = since / if state == proc_state::ACTIVE { IDLE_PART_REGISTERED } else { IDLE_PART };
        let is_idle = cpu.saturating_sub(std::mem::replace(&mut known.had, cpu)) <= idle.max(RUNS);
        let was_set = known.is_set;
        // In another pid namespace its number means another process.
        if !p.asks_for_alarm() || state < proc_state::WATCHING || p.is_elsewhere() {
            (known.alarm, known.is_set) = (None, false);
        } else if !known.is_set && is_idle {
            if known.alarm.is_none() {
                known.alarm = as_pid(known.pid).and_then(|pid| CpuAlarm::new(pid, slot as u32).ok());
            }
            known.is_set = known.alarm.as_ref().is_some_and(|alarm| alarm.set(cpu + RUNS));
            // The alarm was of an earlier process of this number.
            known.alarm = known.alarm.take().filter(|_| known.is_set);
        }
        // Repeats it for a program that the process has executed.
        p.has_alarm(known.is_set);
        if was_set && !known.is_set {
            p.ring();
        }
    }

    /// Handles an expired alarm of this slot. (A stale alarm or a foreign signal wakes a reclaimer
    /// in vain.)
    pub fn has_run(&mut self, slot: u32) {
        let slot = slot as usize;
        if let (Some(known), Some(p)) = (self.known.get_mut(slot), self.segment.used_procs().get(slot)) {
            known.is_set = false;
            // Keeps the next look from waking it again for the same.
            known.woken = as_pid(known.pid).and_then(cpu_clock::of).unwrap_or(known.woken);
            p.has_alarm(false);
            p.ring();
        }
    }

    pub fn signal(&mut self, signal: Signal) {
        for p in self.segment.used_procs() {
            let pid = p.pid.load(Ordering::Relaxed);
            if p.state.load(Ordering::Acquire) >= proc_state::WATCHING
                && let Some(pidfd) = ancestry::member(pid)
            {
                let _ = rustix::process::pidfd_send_signal(&pidfd, signal);
            }
        }
    }

    /// Kills all registered processes, also newly forked ones, until none is left (for two seconds
    /// at most: a process that waits for a disk dies later).
    pub fn kill(&mut self) {
        for _ in 0..200 {
            self.poll();
            let mut left = false;
            for (i, p) in self.segment.used_procs().iter().enumerate() {
                let pid = p.pid.load(Ordering::Relaxed);
                if p.state.load(Ordering::Acquire) < proc_state::WATCHING || pid == 0 {
                    continue;
                }
                left = true;
                let start = self.known.get(i).filter(|known| known.pid == pid).map(|known| known.start);
                // Registered since the poll: the next round gets it.
                let Some(start) = start else { continue };
                // The open pidfd pins the pid's process: the start time then identifies it.
                let Some(pidfd) = ancestry::member(pid) else { continue };
                if Stat::of(pid).is_some_and(|stat| stat.start == start) {
                    let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
                }
            }
            if !left {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal_fd::{SignalFd, SignalSet};
    use crate::supervisor::shared_memory::tests::segment;
    use std::process::Command;

    #[test]
    fn the_reclaimers_of_those_that_run_are_woken_and_no_others() {
        let segment: &'static Segment = Box::leak(segment());
        let mut children =
            ["exec sleep 1000", "while :; do :; done"].map(|script| Command::new("sh").args(["-c", script]).spawn().unwrap());
        // Excludes the CPU time of starting.
        std::thread::sleep(Duration::from_millis(200));
        let procs = children.each_ref().map(|child| segment.claim(child.id()).unwrap());
        let mut tree = Tree::new(segment);
        tree.poll();
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(50));
            tree.poll();
        }
        let rings = procs.map(|p| p.bell.load(Ordering::Relaxed));
        children.iter_mut().for_each(|child| assert!(child.kill().and_then(|()| child.wait()).is_ok()));
        assert_eq!(rings[0], 0);
        assert!((2..=4).contains(&rings[1]), "{rings:?}");
        tree.poll();
        assert!(procs.iter().all(|p| p.state.load(Ordering::Relaxed) == proc_state::FREE), "and who is gone is");
    }

    #[test]
    fn who_asks_for_an_alarm_is_woken_as_soon_as_it_runs() {
        let test = || {
            // SAFETY: no other code here uses this signal.
            let real_time = unsafe { Signal::from_raw_unchecked(libc::SIGRTMIN()) };
            let (signals, _) = SignalFd::new(&SignalSet::of(&[real_time])).unwrap();
            let segment: &'static Segment = Box::leak(segment());
            let mut shell = Command::new("sh");
            let mut child =
                shell.args(["-c", "read line; while :; do :; done"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
            let a_while = || std::thread::sleep(Duration::from_millis(50));
            (0..4).for_each(|_| a_while());
            let p = segment.claim(child.id()).unwrap();
            let mut tree = Tree::new(segment);
            tree.poll();
            let was_early = p.is_rung_when_it_runs() || tree.known[0].alarm.is_some();
            a_while();
            tree.poll();
            let was_set = p.is_rung_when_it_runs();
            let before = p.bell.load(Ordering::Relaxed);
            drop(child.stdin.take());
            let began = Instant::now();
            let alarm = loop {
                match signals.next() {
                    None if began.elapsed() < Duration::from_secs(20) => std::thread::sleep(Duration::from_millis(1)),
                    received => break received.and_then(|received| received.alarm),
                }
            };
            alarm.into_iter().for_each(|slot| tree.has_run(slot));
            let rings = p.bell.load(Ordering::Relaxed) - before;
            let is_set = p.is_rung_when_it_runs();
            assert!(child.kill().and_then(|()| child.wait()).is_ok());
            assert_eq!((was_early, was_set, alarm, rings, is_set), (false, true, Some(0), 1, false));
            tree.has_run(1000);
            tree.poll();
            assert!(tree.known[0].alarm.is_none() && signals.next().is_none(), "who is gone has none");
        };
        // A separate thread keeps the signal masks of other tests unchanged.
        std::thread::spawn(test).join().unwrap();
    }
}
