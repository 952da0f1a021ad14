//! Whole runs of real programs, again and again, with each operation of lowtide on its swap file, each of its mappings and each
//! of its allocations failing in turn, and many of its calls of userfaultfd and of the page map. Whatever fails: the program
//! ends as it should (it checks every byte of its memory itself), or it is stopped with a message that says what failed, and
//! where; it never goes on with wrong data, and it never hangs.
//!
//! `make faults` lets every operation fail; without `LOWTIDE_FAULTS_ALL` a sample of them does. A failure is repeated with
//! `LOWTIDE_FAULTS_ONLY='SCENE KIND AT'`, as the message says it.

#[path = "../real_programs/gauges.rs"]
#[allow(dead_code)]
mod gauges;
#[path = "../real_programs/handlers.rs"]
mod handlers;
#[path = "../real_programs/machine.rs"]
#[allow(dead_code)]
mod machine;
#[path = "../real_programs/measure.rs"]
#[allow(dead_code)]
mod measure;
#[path = "../real_programs/programs.rs"]
#[allow(dead_code)]
mod programs;

mod numbers_of_handlers;
mod run;

use lowtide_core::faults::{Fault, Op};
use run::{BARE_FORK, SCENES, Scene, Tally, at_each, now_and_then};

/// Of the operations of a run, every so many fail where not all do.
const SAMPLE: u64 = 97;

fn with(op: Op, kinds: &[Fault]) {
    each(SCENES.iter(), kinds, |scene, kind, tally| at_each(scene, op, kind, SAMPLE, tally));
}

/// The same of calls of the kernel that are made for almost each page.
fn with_calls(op: Op, kinds: &[Fault]) {
    each(SCENES.iter().chain([&BARE_FORK]), kinds, |scene, kind, tally| now_and_then(scene, op, kind, tally));
}

fn each(
    scenes: impl Iterator<Item = &'static Scene> + Clone,
    kinds: &[Fault],
    mut run: impl FnMut(&Scene, Fault, &mut Tally) -> Vec<String>,
) {
    let Some(turn) = machine::turn() else { return };
    if scenes.clone().any(|scene| scene.job("compiled").is_none()) {
        return;
    }
    // Nothing is measured: the runs may go on side by side.
    drop(turn);
    let mut wrong = Vec::new();
    for scene in scenes {
        for kind in kinds {
            let mut tally = Tally::default();
            wrong.extend(run(scene, *kind, &mut tally));
            machine::say(&format!("  {:<12} {:<12} {tally}", scene.name, format!("{kind:?}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn errors_of_the_device() {
    with(Op::Device, &[Fault::Io, Fault::NoSpace, Fault::Gone]);
}

#[test]
fn hiccups_of_the_device() {
    with(Op::Device, &[Fault::Again, Fault::Interrupted, Fault::Page, Fault::Sector]);
}

#[test]
fn damage_on_the_device() {
    with(Op::Device, &[Fault::Flip, Fault::Lost, Fault::Swapped]);
}

#[test]
fn no_memory_for_mappings() {
    with(Op::Map, &[Fault::NoMemory]);
}

#[test]
fn answers_to_copies() {
    with_calls(Op::Copy, &[Fault::Again, Fault::NoMemory, Fault::Exists, Fault::NoEntry, Fault::Page, Fault::Under]);
}

#[test]
fn answers_to_moves() {
    let kinds = [Fault::Again, Fault::NoMemory, Fault::Busy, Fault::Exists, Fault::NoEntry, Fault::Page, Fault::Under];
    with_calls(Op::Move, &kinds);
}

#[test]
fn answers_to_wakes() {
    with_calls(Op::Wake, &[Fault::Again]);
}

#[test]
fn answers_to_registering() {
    with_calls(Op::Register, &[Fault::NoMemory, Fault::Busy]);
}

#[test]
fn answers_to_scans() {
    with_calls(Op::Scan, &[Fault::NoMemory, Fault::Page]);
}

/// One of the two processes is killed after each step of a fork (those of docs/design/fork.md, in parts). The other one's every
/// byte is right, or the run ends with a message; nothing hangs, and nothing is left.
#[test]
fn killed_after_each_step_of_a_fork() {
    let Some(_turn) = machine::turn() else { return };
    let mut wrong = Vec::new();
    for op in [Op::Forking, Op::Forked] {
        let Some((tally, found)) = run::killed_at_each_step(op) else { return };
        machine::say(&format!("  {op:?}: {tally}"));
        wrong.extend(found);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// In this build a fork waits for nobody who is changing mappings just then: the child knows of what came before the cloning,
/// and of nothing else.
#[test]
fn forks_beside_threads_that_move_and_unmap() {
    let Some(_turn) = machine::turn() else { return };
    let Some(job) = programs::job("faults moves", "fork_moves", "100 48") else { return };
    let native = job.native();
    assert!(native.status == 0 && native.stdout == "OK\n", "{native:?}");
    let outcome = job.limited(&measure::Limit { ram: 24 << 20, swap: measure::Swap::Default });
    assert!(outcome.status == 0 && outcome.stdout == "OK\n" && outcome.left.is_empty(), "{outcome:?}");
    assert!(outcome.stat("evictions.pages") > 1000.0, "{}", outcome.stats);
}

/// A process whose swap area has no memory for its tables goes on with the others, and is limited all the same.
#[test]
fn no_memory_for_the_tables_of_an_area() {
    let Some(turn) = machine::turn() else { return };
    let scene = SCENES.iter().find(|scene| scene.name == "areas").expect("it is there");
    if scene.job("compiled").is_none() {
        return;
    }
    drop(turn);
    let (found, wrong) = run::without_tables(scene);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found > 4, "only {found} of the failures were those of an area's tables");
}

#[test]
fn no_memory_on_the_heap() {
    with(Op::Heap, &[Fault::NoMemory]);
}
