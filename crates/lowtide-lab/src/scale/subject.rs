//! The counted process: a pager on a simulated machine and in a simulated run of the arguments'
//! sizes. It simulates the CPUs before any per-CPU data exists; the other processes are entries of
//! the segment. One thread does it all, on one CPU.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lowtide_core::percpu::{self, CacheAligned};
use lowtide_pager::accounts::pool_share::PoolShare;
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::Yields;
use lowtide_wire::segment::{Audit, Proc, Segment, proc_state};

use super::paged::{faults_and_evictions, new_pager};
use super::stored::{POOL, hand_out_frames, store_of_child, store_to_file};
use super::{Counts, STEPS, Step, stepper};
use crate::threads;

pub(super) const NAME: &str = "scale-subject";
/// Bytes that each other process uses.
const OTHERS_BYTES: u64 = 2 << 20;

static COUNTED: Mutex<[Option<Counts>; STEPS.len()]> = Mutex::new([None; STEPS.len()]);

pub(super) fn counted<T>(step: Step, f: impl FnOnce() -> T) -> T {
    let (value, counts) = stepper::counted(f);
    if let Ok(mut all) = COUNTED.lock() {
        all[step as usize] = Some(counts);
    }
    value
}

/// The program: `CPUS NODES PROCESSES`.
pub(super) fn main(args: &[String]) -> ExitCode {
    let numbers: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let &[cpus @ (1..), nodes @ (1..), processes @ (1..)] = numbers.as_slice() else {
        eprintln!("lowtide-lab: {NAME} is started by the experiment only");
        return ExitCode::from(2);
    };
    percpu::force(cpus, nodes);
    match all_steps(nodes, processes) {
        Ok(()) => {
            COUNTED.lock().iter().flat_map(|all| all.iter().flatten()).for_each(|counts| println!("{}", counts.line()));
            ExitCode::SUCCESS
        }
        Err(line) => {
            eprintln!("lowtide-lab: scale: {line}");
            ExitCode::FAILURE
        }
    }
}

fn all_steps(nodes: usize, processes: usize) -> Result<(), String> {
    stepper::start()?;
    let cpus = threads::allowed()?;
    threads::pin(*cpus.first().ok_or("no CPU")?)?;
    control(processes);
    hand_out_frames(nodes)?;
    store_to_file()?;
    store_of_child()?;
    let run = new_segment();
    let mine = join(run, processes).ok_or("no place in the segment")?;
    let pager = new_pager(run, mine)?;
    faults_and_evictions(pager)?;
    measurement(run, pager, mine);
    counted(Step::Fork, || {
        pager.announce_fork(run);
        pager.fork_is_over();
    });
    Ok(())
}

/// Walks over all CPUs and processes.
fn control(processes: usize) {
    let figures: Vec<CacheAligned<AtomicU64>> = (0..percpu::count() + processes).map(|_| CacheAligned::default()).collect();
    counted(Step::Control, || black_box(figures.iter().map(|figure| figure.0.load(Relaxed)).sum::<u64>()));
}

fn new_segment() -> &'static Segment {
    // SAFETY: zeros are a valid Segment, and the global allocator's memory has this layout; it is
    // never freed.
    unsafe { &*std::alloc::alloc_zeroed(std::alloc::Layout::new::<Segment>()).cast() }
}

/// Fills the run with processes forked from one, with registered memory. The last one is this.
fn join(run: &Segment, processes: usize) -> Option<&Proc> {
    let mut family = 0;
    for pid in 1..=processes as u32 {
        let is_last = pid as usize == processes;
        let proc = if is_last { counted(Step::Claim, || run.claim(pid)) } else { run.claim(pid) }?;
        family = if family == 0 { run.found_family(proc) } else { family };
        proc.family.store(family, Relaxed);
        proc.state.store(proc_state::ACTIVE, Relaxed);
        run.publish_ram(proc, OTHERS_BYTES);
        if is_last {
            return Some(proc);
        }
    }
    None
}

/// The work of each process's reclaimer at each look.
fn measurement(run: &Segment, pager: &Pager, mine: &Proc) {
    let (mut pool_share, mut yields) = (PoolShare::default(), Yields::default());
    // By `lowtide run`, at most forty times a second.
    counted(Step::Audit, || black_box(Audit::default().look(run)));
    yields.look(run, mine, 1_000_000);
    counted(Step::Publish, || pager.publish());
    counted(Step::OthersOf, || black_box(run.others_of(mine)));
    let total = counted(Step::RamNow, || {
        run.publish_ram(mine, 100 << 20);
        run.ram_roughly()
    });
    counted(Step::Active, || black_box(run.active()));
    counted(Step::PoolShare, || black_box(pool_share.look(run, pager, POOL as u64, total)));
    // No process is busy: all are visited.
    counted(Step::Yields, || black_box(yields.look(run, mine, 20_000_000)));
}
