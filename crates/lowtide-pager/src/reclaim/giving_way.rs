//! Idle processes give way to busy ones. All evict their share of an excess, but one without recent
//! faults, while another has some, evicts down to [`Watermarks::giving_way`], then its pool to
//! devices. So busy ones find room below their watermarks.
//!
//! [`Watermarks::giving_way`]: lowtide_wire::Watermarks::giving_way

use core::sync::atomic::{AtomicU64, Ordering};

use lowtide_wire::segment::{Proc, Segment, proc_state};

/// Idle after this without faults.
const IDLE_US: u64 = 1_000_000;
/// Busy within this after a fault. (Looks come ten times a second.)
const BUSY_US: u64 = 300_000;
/// Its faults are ignored for this long after giving way.
const SETTLES_US: u64 = 5_000_000;
/// Less program memory is nothing to give.
const LEAST: u64 = 1 << 20;

/// For looks; decisions use the segment only.
#[derive(Default)]
pub struct Yields {
    faults: Option<u64>,
    faulted_us: u64,
    yielded_us: Option<u64>,
}

impl Yields {
    /// Whether `mine` should give way at `now_us`. Call at each look: publishes its latest fault.
    pub fn look(&mut self, run: &Segment, mine: &Proc, now_us: u64) -> bool {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let faults = get(&mine.counters.faults_total);
        if self.faults.replace(faults) != Some(faults) {
            self.faulted_us = now_us;
            // Taking pages back is not being busy, or both would alternate.
            if self.yielded_us.is_none_or(|at| now_us.saturating_sub(at) >= SETTLES_US) {
                mine.faulted_us.store(now_us, Ordering::Relaxed);
            }
            return false;
        }
        if now_us.saturating_sub(self.faulted_us) < IDLE_US
            || get(&mine.ram_bytes).saturating_add(get(&mine.pool_bytes)).saturating_sub(get(&mine.own_bytes)) < LEAST
        {
            return false;
        }
        let is_busy = |p: &Proc| {
            p.state.load(Ordering::Relaxed) == proc_state::ACTIVE && now_us.saturating_sub(get(&p.faulted_us)) < BUSY_US
        };
        // Usually alone.
        let yields = run.active() > 1 && run.used_procs().iter().any(|p| !core::ptr::eq(p, mine) && is_busy(p));
        if yields {
            self.yielded_us = Some(now_us);
        }
        yields
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::budget::tests::segment;

    const LOOK_US: u64 = 100_000;
    const SECOND_US: u64 = 1_000_000;

    /// 100 MiB, evicted on giving way.
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

        fn touch(&mut self) {
            if core::mem::take(&mut self.misses) {
                self.fault();
            }
        }

        fn look(&mut self, run: &Segment, now_us: u64) -> bool {
            let yields = self.yields.look(run, self.proc, now_us);
            self.misses |= yields;
            yields
        }
    }

    fn run() -> &'static Segment {
        let run = segment();
        run.seen_active.store(2, Ordering::Relaxed);
        std::boxed::Box::leak(run)
    }

    #[test]
    fn an_idle_process_gives_way_while_another_is_busy() {
        let run = run();
        let (mut idle, mut busy) = (Process::new(run, 1), Process::new(run, 2));
        let mut gave_way = std::vec::Vec::new();
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

    /// Taking pages back must not make the other give way.
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
}
