//! Which process of a run gives way to which. The agent that asks has no test harness; what it decides by is the segment alone.

use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::Ordering;

use lowtide_pager::segment::{Proc, Segment, proc_state};

#[path = "../../lowtide-agent/src/keeper/yields.rs"]
mod yields;

use yields::Yields;

const LOOK_US: u64 = 100_000;
const SECOND_US: u64 = 1_000_000;

/// A process with 100 MiB, whose pages are away when it has given way.
struct Process {
    proc: &'static Proc,
    yields: Yields,
    misses: bool,
}

impl Process {
    fn new(run: &'static Segment, pid: u32) -> Process {
        let proc = run.claim(pid).unwrap();
        proc.state.store(proc_state::ACTIVE, Ordering::Relaxed);
        proc.ram_bytes.store(100 << 20, Ordering::Relaxed);
        Process { proc, yields: Yields::default(), misses: false }
    }

    fn fault(&self) {
        self.proc.counters.faults_total.fetch_add(1, Ordering::Relaxed);
    }

    /// It uses all of its memory.
    fn touch(&mut self) {
        if std::mem::take(&mut self.misses) {
            self.fault();
        }
    }

    /// Its keeper looks; whether it gives way.
    fn look(&mut self, run: &Segment, now_us: u64) -> bool {
        let yields = self.yields.look(run, self.proc, now_us);
        self.misses |= yields;
        yields
    }
}

fn run() -> &'static Segment {
    // SAFETY: zeros are a valid, empty Segment, and the memory is the global allocator's, of this layout; it is never freed.
    unsafe { &*alloc_zeroed(Layout::new::<Segment>()).cast() }
}

#[test]
fn an_idle_process_gives_way_while_another_is_busy() {
    let run = run();
    let (mut idle, mut busy) = (Process::new(run, 1), Process::new(run, 2));
    let mut gave_way = Vec::new();
    for now in (1..100).map(|look| 10 * SECOND_US + look * LOOK_US) {
        if now < 15 * SECOND_US {
            busy.fault();
        }
        assert!(!busy.look(run, now), "to whom?");
        if idle.look(run, now) {
            gave_way.push(now);
        }
    }
    let (first, last) = (gave_way[0], gave_way[gave_way.len() - 1]);
    assert!((11 * SECOND_US..12 * SECOND_US).contains(&first), "it has to be idle first: {first}");
    assert!((15 * SECOND_US..16 * SECOND_US).contains(&last), "to nobody who is busy no more: {last}");
}

/// What a process gave away it takes back when it is used; the other has to give nothing for that, or it would take that back
/// in turn.
#[test]
fn two_processes_do_not_give_way_to_each_other_for_ever() {
    let run = run();
    let mut processes = [Process::new(run, 1), Process::new(run, 2)];
    let mut last_us = 0;
    for look in 0..600 {
        let now = 10 * SECOND_US + look * LOOK_US;
        if look < 30 {
            processes[0].fault();
        }
        // Each is used every three seconds, in turn.
        for (i, process) in processes.iter_mut().enumerate() {
            if look % 30 == 15 * i as u64 {
                process.touch();
            }
            if process.look(run, now) {
                last_us = now;
            }
        }
    }
    assert!(last_us > 0, "the second gives way to the first");
    assert!(last_us < 30 * SECOND_US, "in the {} th second one still gives way to the other", last_us / SECOND_US - 10);
}
