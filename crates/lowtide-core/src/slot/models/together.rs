//! Everything at once: threads allocate runs of all orders from two areas, free parts of them, and
//! leave clean copies, while workers reclaim, discard, and remove an area. A shadow records each
//! slot's owner.

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use std::boxed::Box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::vec::Vec;

use super::area;
use crate::slot::{Area, AreaConfig, Areas, CLUSTER_SLOTS, ORDERS, Policy, SlotError, SwapCache};

const SLOTS: u64 = 1300;
/// States of a slot; from `OWNED` on, plus the number of the owning thread.
const FREE: u8 = 0;
const COPY: u8 = 1;
const OWNED: u8 = 2;

const ORDERS_TRIED: usize = 300;

/// Many random orders of events, and many that differ from a plain one at a few places.
fn explore(f: impl Fn() + Send + Sync + Clone + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new(ORDERS_TRIED), config.clone()).run(f.clone());
    Runner::new(PctScheduler::new(3, ORDERS_TRIED), config).run(f);
}

struct Shadow([Box<[AtomicU8]>; 2]);

impl Shadow {
    fn new() -> Shadow {
        Shadow(core::array::from_fn(|_| (0..SLOTS).map(|_| AtomicU8::new(FREE)).collect()))
    }

    fn pass(&self, id: u8, first: u64, n: u64, from: u8, to: u8) {
        for slot in first..first + n {
            assert!(self.try_pass(id, slot, from, to), "slot {slot} of area {id} is not {from}'s");
        }
    }

    fn try_pass(&self, id: u8, slot: u64, from: u8, to: u8) -> bool {
        self.0[id as usize][slot as usize].compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    fn all_with(&self, id: u8, state: u8) -> impl Iterator<Item = u64> {
        self.0[id as usize].iter().zip(0..).filter(move |(s, _)| s.load(SeqCst) == state).map(|(_, slot)| slot)
    }
}

struct Copies<'a>(&'a Shadow);

/// The priority tells the areas apart.
fn id_of(area: &Area) -> u8 {
    area.priority as u8
}

impl SwapCache for Copies<'_> {
    fn give_up(&self, area: &Area, slot: u64) -> bool {
        // Would deadlock if the caller held a lock.
        area.has_free_run(9);
        area.next().hint(0).get();
        self.0.try_pass(id_of(area), slot, COPY, FREE)
    }
}

fn config(id: u8, policy: Policy) -> AreaConfig {
    AreaConfig {
        slots: SLOTS,
        priority: id.into(),
        allocator: policy.into(),
        rotating: id == 1,
        discard: true,
        ..AreaConfig::default()
    }
}

struct World {
    areas: Areas,
    shadow: Shadow,
    policy: Policy,
}

type Run = (u8, u64, u64);

impl World {
    fn new(policy: Policy) -> Arc<World> {
        let world = World { areas: Areas::new(), shadow: Shadow::new(), policy };
        for id in 0..2 {
            assert_eq!(world.areas.add(area(config(id, policy)), true), Ok(id));
        }
        Arc::new(world)
    }

    fn alloc(&self, me: u8, order: u32, cache: &dyn SwapCache) -> Option<Run> {
        let (area, first) = self.areas.alloc(order, cache)?;
        let n = 1 << order;
        assert!(first.is_multiple_of(n) && first > 0 && first + n <= SLOTS && id_of(&area) == area.id());
        self.shadow.pass(area.id(), first, n, FREE, me);
        Some((area.id(), first, n))
    }

    fn free(&self, me: u8, (id, first, n): Run) {
        let area = self.areas.get(id).expect("an area with slots in use stays");
        self.shadow.pass(id, first, n, me, FREE);
        area.free_run(first, n).unwrap();
    }

    fn leave_copies(&self, me: u8, (id, first, n): Run) {
        let area = self.areas.get(id).expect("an area with slots in use stays");
        self.shadow.pass(id, first, n, me, COPY);
        (first..first + n).for_each(|slot| area.mark_cached(slot, true));
        for slot in first..first + n {
            if thread_rng().gen_bool(0.3) && self.shadow.try_pass(id, slot, COPY, me) {
                area.mark_cached(slot, false);
                self.free(me, (id, slot, 1));
            }
        }
    }

    fn program(&self, me: u8, steps: usize, cache: &dyn SwapCache) {
        let mut mine: Vec<Run> = Vec::new();
        for _ in 0..steps {
            let mut rng = thread_rng();
            if mine.is_empty() || rng.gen_bool(0.6) {
                // Large runs more often: they fill clusters.
                let order = rng.gen_range(0..ORDERS as u32).max(rng.gen_range(0..ORDERS as u32));
                mine.extend(self.alloc(me, order, cache));
                continue;
            }
            let (id, first, n) = mine.swap_remove(rng.gen_range(0..mine.len()));
            let at = rng.gen_range(0..n);
            let some = rng.gen_range(1..=n - at).min(8);
            mine.extend([(id, first, at), (id, first + at + some, n - at - some)].iter().filter(|run| run.2 > 0));
            let run = (id, first + at, some);
            if rng.gen_bool(0.7) { self.leave_copies(me, run) } else { self.free(me, run) }
        }
        mine.into_iter().for_each(|run| self.free(me, run));
    }

    fn worker(&self, steps: usize, cache: &dyn SwapCache) {
        for _ in 0..steps {
            for area in self.areas.iter() {
                area.reclaim_full(2, cache);
                area.discard_some(1);
            }
        }
    }

    /// Replaces an area if it is empty, else reopens it.
    fn swapoff(&self, id: u8) {
        self.areas.close(id).unwrap();
        match self.areas.remove(id) {
            Ok(()) => {
                assert_eq!(self.shadow.all_with(id, FREE).count() as u64, SLOTS, "removed with slots in use");
                assert_eq!(self.areas.add(area(config(id, self.policy)), true), Ok(id));
            }
            Err(e) => {
                assert_eq!(e, SlotError::StillInUse);
                self.areas.reopen(id);
            }
        }
    }

    /// After all threads: everything agrees, and every slot can be allocated.
    fn assert_whole(&self) {
        for id in 0..2 {
            let area = self.areas.get(id).unwrap();
            area.validate().unwrap();
            let copies: Vec<u64> = self.shadow.all_with(id, COPY).collect();
            copies.iter().for_each(|slot| area.release(*slot));
            assert!(area.used() <= 1 && !area.may_be_reclaimed(), "slots are lost");
            assert_eq!(core::iter::from_fn(|| area.alloc(0)).count() as u64, SLOTS - 1);
            area.validate().unwrap();
        }
        assert!(self.areas.listed().is_empty(), "full areas are not on offer");
    }
}

fn together(world: &Arc<World>, threads: &[fn(&World)]) {
    let spawn = |f: &fn(&World)| {
        let (world, f) = (world.clone(), *f);
        thread::spawn(move || f(&world))
    };
    let threads: Vec<_> = threads.iter().map(spawn).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

fn all_together(policy: Policy) {
    explore(move || {
        let world = World::new(policy);
        together(
            &world,
            &[
                |w| w.program(OWNED, 20, &Copies(&w.shadow)),
                |w| w.program(OWNED + 1, 20, &Copies(&w.shadow)),
                |w| w.program(OWNED + 2, 20, &Copies(&w.shadow)),
                |w| w.worker(5, &Copies(&w.shadow)),
                |w| (0..2).for_each(|_| w.swapoff(1)),
            ],
        );
        world.assert_whole();
    });
}

#[test]
fn all_together_scan_all() {
    all_together(Policy::ScanAll);
}

#[test]
fn all_together_scan_one() {
    all_together(Policy::ScanOne);
}

#[test]
fn all_together_bucketed() {
    all_together(Policy::Bucketed);
}

#[test]
fn all_together_exact() {
    all_together(Policy::Exact);
}

/// Bug: takes a slot of a cluster that was free under an earlier hold of its lock.
fn take_later(world: &World, me: u8) {
    let area = world.areas.get(0).unwrap();
    let index = area.clusters().lock(0).used_without(&area.marks().of(0)).find_clear(0, 0).unwrap();
    let mut inner = area.clusters().lock(0);
    if !inner.is_used(index) {
        inner.occupy(index, 1);
    }
    world.shadow.pass(0, index as u64, 1, FREE, me);
}

#[test]
#[should_panic(expected = "is not 0's")]
fn a_slot_that_is_given_out_twice_is_found() {
    explore(|| {
        let programs: [fn(&World); 2] = [|w| take_later(w, OWNED), |w| take_later(w, OWNED + 1)];
        let world = World::new(Policy::Exact);
        world.areas.get(0).unwrap().alloc(0);
        world.shadow.pass(0, 1, 1, FREE, OWNED + 2);
        together(&world, &programs);
    });
}

/// Single-slot threads; each cluster has one slot more.
const FEW: u64 = 3;

/// `alloc` always finds a slot, though another thread sometimes locks all clusters.
fn one_slot_is_always_had(alloc: fn(&Area) -> Option<u64>) {
    explore(move || {
        let area = Arc::new(area(AreaConfig { slots: 1024, ..AreaConfig::default() }));
        (0..=9).rev().for_each(|order| while area.alloc(order).is_some() {});
        [500, 600].iter().for_each(|first| area.free_run(*first, FEW).unwrap());
        let spawn = |_| {
            let area = area.clone();
            thread::spawn(move || {
                for _ in 0..6 {
                    // Past this CPU's latest cluster, for which all threads wait.
                    area.next().hint(0).set_own(0);
                    let slot = alloc(&area).expect("each cluster has a slot");
                    area.free_run(slot, 1).unwrap();
                }
            })
        };
        let threads: Vec<_> = (0..FEW).map(spawn).collect();
        (0..3).for_each(|_| have_all_in_hand(&area));
        threads.into_iter().for_each(|t| t.join().unwrap());
        area.validate().unwrap();
    });
}

/// Longer than the others' number of tries.
fn have_all_in_hand(area: &Area) {
    let held = [0, 1].map(|i| area.clusters().try_lock(i));
    (0..100).for_each(|_| thread::yield_now());
    drop(held);
}

#[test]
fn one_slot_is_had_whatever_others_have_in_hand() {
    one_slot_is_always_had(|area| area.alloc(0));
}

/// Bug: waits for no cluster.
fn alloc_without_patience(area: &Area) -> Option<u64> {
    (0..2 * 3).find_map(|n| {
        let i = n % 2;
        let mut inner = area.clusters().try_lock(i)?;
        let index = inner.take(0, 0)?;
        area.took(i, &mut inner, index, 1);
        Some((i * CLUSTER_SLOTS + index) as u64)
    })
}

#[test]
#[should_panic(expected = "each cluster has a slot")]
fn who_only_tries_gives_up_while_there_are_slots() {
    one_slot_is_always_had(alloc_without_patience);
}
