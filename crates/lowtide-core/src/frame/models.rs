//! The lists, their refill, overflow and drain: all orders of two threads' steps (loom, bounded
//! preemptions), or many random ones (shuttle). Each protocol also runs with a bug put in, which
//! must be found.
//!
//! `cargo test --features loom models` or `--features shuttle`.

#[cfg(feature = "loom")]
use loom::{sync::Arc, thread};
#[cfg(not(feature = "loom"))]
use shuttle::{sync::Arc, thread};
use std::vec::Vec;

use super::*;
use arena::Arena;

#[cfg(feature = "loom")]
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[cfg(not(feature = "loom"))]
fn check(model: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(model, 3000);
}

/// Small, so that overflow and refill come soon.
fn small() -> Arc<Frames> {
    Arc::new(Frames::with_layout(Layout { nodes: &[16], node_of_cpu: &[0, 0], list_frames: 16 }).unwrap())
}

/// Model checkers don't see memory accesses. This load stands for one.
fn given_back(frames: &Frames) {
    frames.arenas[0].returning.load(Relaxed);
}

fn write(frames: &Frames, f: FrameNo, byte: u8) {
    given_back(frames);
    // SAFETY: only one modelled thread runs at a time, and callers own the frame.
    unsafe { *frames.ptr(f) = byte }
}

fn assert_kept(frames: &Frames, f: FrameNo, byte: u8) {
    given_back(frames);
    // SAFETY: as above.
    assert_eq!(unsafe { *frames.ptr(f) }, byte, "somebody else's bytes");
}

fn assert_at_rest(frames: &Frames) {
    assert_eq!(frames.in_use(), 0);
    frames.drain();
    assert!(frames.arenas[0].stock.with(|buddy| buddy.is_whole()), "frames were lost");
    assert_eq!(frames.held_bytes(), 0);
}

/// As the code does, or with a bug.
#[derive(Clone, Copy)]
struct Ways {
    alloc: fn(&Frames, usize) -> Option<FrameNo>,
    drain: fn(&Frames),
}

const RIGHT: Ways = Ways { alloc: |frames, cpu| frames.alloc_on(cpu, 1), drain: Frames::drain };

fn use_one(frames: &Frames, ways: Ways, cpu: usize, byte: u8) {
    let f = (ways.alloc)(frames, cpu).unwrap();
    write(frames, f, byte);
    let other = (ways.alloc)(frames, cpu).unwrap();
    write(frames, other, byte);
    assert_kept(frames, f, byte);
    frames.free_on(cpu, f, 1).unwrap();
    assert_kept(frames, other, byte);
    frames.free_on(cpu, other, 1).unwrap();
}

/// One has a stale CPU number.
fn same_cpu(ways: Ways) {
    check(move || {
        let frames = small();
        let there = frames.clone();
        let thread = thread::spawn(move || use_one(&there, ways, 0, 2));
        use_one(&frames, ways, 0, 1);
        thread.join().unwrap();
        assert_at_rest(&frames);
    });
}

fn drained(ways: Ways) {
    check(move || {
        let frames = small();
        use_one(&frames, ways, 0, 1);
        let there = frames.clone();
        let thread = thread::spawn(move || (ways.drain)(&there));
        use_one(&frames, ways, 0, 2);
        thread.join().unwrap();
        assert_at_rest(&frames);
    });
}

#[test]
fn a_stale_cpu_number_costs_nothing_but_a_lock() {
    same_cpu(RIGHT);
}

#[test]
fn draining_loses_nothing_and_takes_nothing_that_is_used() {
    drained(RIGHT);
}

#[test]
fn a_run_is_taken_from_the_lists_of_another_cpu() {
    check(|| {
        let frames = small();
        use_one(&frames, RIGHT, 0, 1);
        let there = frames.clone();
        let thread = thread::spawn(move || use_one(&there, RIGHT, 1, 2));
        use_one(&frames, RIGHT, 0, 3);
        thread.join().unwrap();
        assert_at_rest(&frames);
    });
}

#[test]
fn overflow_and_refill_meet() {
    check(|| {
        let frames = small();
        let held: Vec<_> = (0..8).map(|_| frames.alloc_on(0, 1).unwrap()).collect();
        let there = frames.clone();
        let thread = thread::spawn(move || {
            let f = there.alloc_on(1, 4).unwrap();
            write(&there, f, 3);
            let single = there.alloc_on(0, 1).unwrap();
            assert_kept(&there, f, 3);
            there.free_on(1, f, 4).unwrap();
            there.free_on(0, single, 1).unwrap();
        });
        for f in held {
            frames.free_on(0, f, 1).unwrap();
        }
        thread.join().unwrap();
        assert_at_rest(&frames);
    });
}

#[test]
fn two_drains_meet() {
    check(|| {
        let frames = small();
        let held: Vec<_> = (0..2).map(|_| frames.alloc_on(0, 1).unwrap()).collect();
        let there = frames.clone();
        let thread = thread::spawn(move || there.drain());
        for f in held {
            frames.free_on(0, f, 1).unwrap();
        }
        frames.drain();
        thread.join().unwrap();
        assert_at_rest(&frames);
    });
}

/// The last bound holds.
#[test]
fn what_is_kept_changes_while_lists_are_used() {
    check(|| {
        let frames = small();
        use_one(&frames, RIGHT, 1, 1);
        let there = frames.clone();
        let thread = thread::spawn(move || there.keep(0));
        use_one(&frames, RIGHT, 1, 2);
        thread.join().unwrap();
        assert_eq!(frames.kept(), Some(0));
        assert_eq!(frames.held_bytes(), 0);
        frames.keep(16);
        use_one(&frames, RIGHT, 1, 3);
        assert!(frames.held_bytes() > 0);
        assert_at_rest(&frames);
    });
}

/// One takes effect, in all lists.
#[test]
fn two_change_what_is_kept() {
    check(|| {
        let frames = small();
        let held: Vec<_> = (0..4).map(|_| frames.alloc_on(0, 1).unwrap()).collect();
        for (i, f) in held.iter().enumerate() {
            frames.free_on(i % 2, *f, 1).unwrap();
        }
        let there = frames.clone();
        let thread = thread::spawn(move || there.keep(8));
        frames.keep(0);
        thread.join().unwrap();
        let kept = frames.kept().unwrap();
        assert!(frames.held_bytes() <= kept * PAGE_SIZE);
        let arena = &frames.arenas[0];
        assert_eq!(arena.cpus.iter().map(|cpu| cpu.lists.lock().bound() as usize).sum::<usize>(), kept);
        assert_at_rest(&frames);
    });
}

#[test]
fn who_finds_none_takes_nothing_from_who_frees() {
    check(|| {
        let frames = small();
        let held: Vec<_> = core::iter::from_fn(|| frames.alloc_on(0, 1)).collect();
        let there = frames.clone();
        let thread = thread::spawn(move || {
            if let Some(f) = there.alloc_on(1, 1) {
                there.free_on(1, f, 1).unwrap();
            }
        });
        frames.free_on(0, FrameNo(0), 1).unwrap();
        frames.free_on(0, FrameNo(1), 1).unwrap();
        thread.join().unwrap();
        // Whatever the other thread read without a lock or noted as empty.
        assert_eq!((held.len(), frames.alloc_on(1, 2), frames.alloc_on(0, 1)), (16, Some(FrameNo(0)), None));
        held.iter().for_each(|f| frames.free_on(0, *f, 1).unwrap());
        assert_at_rest(&frames);
    });
}

#[test]
fn who_finds_none_overlooks_nothing_on_its_way_from_the_buddy_to_lists() {
    check(|| {
        let frames = small();
        let held: Vec<_> = core::iter::from_fn(|| frames.alloc_on(0, 1)).collect();
        (0..9).for_each(|f| frames.free_on(0, FrameNo(f), 1).unwrap());
        frames.drain();
        let there = frames.clone();
        // Refills a list with one of the eight that are left.
        let thread = thread::spawn(move || there.alloc_on(0, 1));
        let eight = frames.alloc_on(1, 8);
        assert_eq!((eight, thread.join().unwrap()), (Some(FrameNo(0)), Some(FrameNo(8))), "there was one");
        held.iter().skip(9).for_each(|f| frames.free_on(0, *f, 1).unwrap());
        frames.free_on(1, FrameNo(0), 8).unwrap();
        frames.free_on(0, FrameNo(8), 1).unwrap();
        assert_at_rest(&frames);
    });
}

/// Bug: top and pop in two holds of the lock.
fn alloc_in_two_holds(frames: &Frames, cpu: usize) -> Option<FrameNo> {
    let cpu_lists = &frames.arenas[0].cpus[cpu];
    let top = {
        let mut lists = cpu_lists.lists.lock();
        lists.pop(0).inspect(|top| assert!(lists.push(0, *top)))
    };
    let Some(top) = top else { return frames.alloc_on(cpu, 1) };
    let mut lists = cpu_lists.lists.lock();
    lists.pop(0);
    cpu_lists.count(1, &lists);
    drop(lists);
    frames.handed.set(top.start(), 1);
    Some(FrameNo(top.start()))
}

/// Bug: copies the lists in one hold of the lock and empties them in the next.
fn drain_in_two_holds(frames: &Frames) {
    let arena: &Arena = &frames.arenas[0];
    for cpu in arena.cpus.iter() {
        let mut copied = Runs::new();
        let mut lists = cpu.lists.lock();
        lists.take_all(&mut copied);
        for (run, warm) in copied.iter() {
            assert!(lists.push(0, ListedRun::new(run.start, warm > 0)));
        }
        drop(lists);
        let mut lists = cpu.lists.lock();
        lists.take_all(&mut Runs::new());
        arena.left(cpu, &lists, &copied);
        drop(lists);
        arena.give_back(copied);
    }
}

/// Bug: frames are allocatable before their memory is returned.
fn drain_to_the_buddy_first(frames: &Frames) {
    let arena = &frames.arenas[0];
    for cpu in arena.cpus.iter() {
        let mut out = Runs::new();
        let mut lists = cpu.lists.lock();
        lists.take_all(&mut out);
        arena.left(cpu, &lists, &out);
        drop(lists);
        for (run, _) in out.iter() {
            arena.stock.with(|buddy| buddy.put(run));
        }
        for (run, _) in out.iter() {
            let (from, len) = (run.start as usize * PAGE_SIZE, run.frames as usize * PAGE_SIZE);
            // SAFETY: none; that is the bug. No reference to the frames exists in the model.
            unsafe { arena.memory.discard(from, len) };
        }
        arena.returning.fetch_sub(out.warm_frames(), Relaxed);
    }
}

/// Bug: clears the note without the lock.
fn drain_and_say_so_late(frames: &Frames) {
    let arena = &frames.arenas[0];
    for number in arena.noted.iter() {
        let cpu = &arena.cpus[number];
        let mut out = Runs::new();
        let mut lists = cpu.lists.lock();
        lists.take_all(&mut out);
        arena.left(cpu, &lists, &out);
        lists.is_noted = false;
        drop(lists);
        arena.noted.remove(number);
        arena.give_back(out);
    }
}

#[test]
fn the_bugs_do_not_show_with_one_thread() {
    for drain in [drain_in_two_holds, drain_to_the_buddy_first, drain_and_say_so_late] {
        check(move || {
            let frames = small();
            use_one(&frames, Ways { alloc: alloc_in_two_holds, drain }, 0, 1);
            drain(&frames);
            use_one(&frames, Ways { alloc: alloc_in_two_holds, drain }, 0, 2);
            assert_at_rest(&frames);
        });
    }
}

#[test]
#[should_panic]
fn looking_and_taking_in_two_holds_is_found() {
    same_cpu(Ways { alloc: alloc_in_two_holds, ..RIGHT });
}

#[test]
#[should_panic]
fn copying_and_emptying_in_two_holds_is_found() {
    drained(Ways { drain: drain_in_two_holds, ..RIGHT });
}

#[test]
#[should_panic(expected = "frames were lost")]
fn forgetting_lists_after_their_lock_is_let_go_is_found() {
    drained(Ways { drain: drain_and_say_so_late, ..RIGHT });
}

#[test]
#[should_panic(expected = "somebody else's bytes")]
fn memory_given_back_too_late_is_found() {
    drained(Ways { drain: drain_to_the_buddy_first, ..RIGHT });
}
