//! Any sequence of allocations, frees, copies and references on an area, against a plain map of the runs in use.
#![no_main]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use lowtide_core::slot::{Area, AreaConfig, Policy, SwapCache};

/// One call of the area.
#[derive(Arbitrary, Debug)]
enum Op {
    /// 2^order slots, order modulo 11: one more than exist.
    Alloc { order: u8 },
    /// All of a run in use, or a part.
    Free { which: u8, skip: u16, most: u16 },
    /// Whatever the numbers name, which may not be in use.
    FreeAny { first: u16, n: u16 },
    /// The first slots of a run in use become clean copies.
    Copy { which: u8, n: u16 },
    /// Full clusters give up copies.
    Reclaim { most: u8 },
    /// Free clusters are discarded.
    Discard { most: u8 },
}

#[derive(Arbitrary, Debug)]
struct Case {
    slots: u16,
    policy: u8,
    rotating: bool,
    discard: bool,
    shared: bool,
    ops: Vec<Op>,
}

/// What should be in use.
#[derive(Default)]
struct Model {
    /// Length by first slot; runs don't overlap.
    runs: BTreeMap<u64, u64>,
    /// Those slots in use that are only copies. They are in no run.
    copies: RefCell<BTreeSet<u64>>,
}

impl Model {
    fn is_free(&self, first: u64, n: u64) -> bool {
        self.is_room(first, n) && self.copies.borrow().range(first..first + n).next().is_none()
    }

    /// Whether slots are free, or only copies.
    fn is_room(&self, first: u64, n: u64) -> bool {
        self.runs.range(..first + n).next_back().is_none_or(|(s, len)| s + len <= first)
    }

    fn is_used(&self, slot: u64) -> bool {
        !self.is_free(slot, 1)
    }

    /// A run in use, which the model forgets.
    fn pick(&mut self, which: u8) -> Option<(u64, u64)> {
        let first = *self.runs.keys().nth(usize::from(which) % self.runs.len().max(1))?;
        self.runs.remove_entry(&first)
    }

    fn keep(&mut self, first: u64, n: u64) {
        if n > 0 {
            self.runs.insert(first, n);
        }
    }

    /// `n` slots from `first` on are free now.
    fn forget(&mut self, first: u64, n: u64) {
        for slot in first..first + n {
            if self.copies.borrow_mut().remove(&slot) {
                continue;
            }
            let (start, len) = self.runs.range(..=slot).next_back().map(|(s, l)| (*s, *l)).unwrap();
            self.runs.remove(&start);
            self.keep(start, slot - start);
            self.keep(slot + 1, start + len - slot - 1);
        }
    }

    fn used(&self) -> u64 {
        self.runs.values().sum::<u64>() + self.copies.borrow().len() as u64
    }
}

impl SwapCache for Model {
    fn give_up(&self, _area: &Area, slot: u64) -> bool {
        assert!(self.copies.borrow_mut().remove(&slot), "slot {slot} is no copy");
        true
    }
}

fn run(case: Case) {
    let slots = 512 + u64::from(case.slots) % 4096;
    let policy = Policy::ALL[usize::from(case.policy) % Policy::ALL.len()];
    let Case { rotating, discard, shared, .. } = case;
    let cfg = AreaConfig { slots, allocator: policy.into(), rotating, discard, shared, ..AreaConfig::default() };
    let area = Area::new(None, cfg).unwrap();
    let mut model = Model::default();
    for op in case.ops {
        match op {
            Op::Alloc { order } => {
                let (order, n) = (u32::from(order % 11), 1 << (order % 11));
                let Some(first) = area.alloc_reclaiming(order, &model) else {
                    let exists = order < 10 && (0..slots - n + 1).step_by(n as usize).any(|s| s > 0 && model.is_room(s, n));
                    // Only an exact search finds all runs, and any search finds all single slots.
                    assert!(!exists || policy != Policy::Exact && order > 0, "gave up on order {order}");
                    continue;
                };
                assert!(first > 0 && first.is_multiple_of(n) && first + n <= slots && model.is_free(first, n));
                model.keep(first, n);
            }
            Op::Free { which, skip, most } => {
                let Some((first, len)) = model.pick(which) else { continue };
                model.keep(first, len);
                let skip = u64::from(skip) % len;
                let n = u64::from(most).clamp(1, len - skip);
                area.free_run(first + skip, n).unwrap();
                model.forget(first + skip, n);
            }
            Op::FreeAny { first, n } => {
                let (first, n) = (u64::from(first), u64::from(n));
                let one_cluster = n > 0 && first % 512 + n <= 512;
                let right = one_cluster && first > 0 && first + n <= slots && (first..first + n).all(|s| model.is_used(s));
                assert_eq!(area.free_run(first, n).is_ok(), right);
                if right {
                    model.forget(first, n);
                }
            }
            Op::Copy { which, n } => {
                let Some((first, len)) = model.pick(which) else { continue };
                let n = u64::from(n).min(len);
                model.keep(first + n, len - n);
                for slot in first..first + n {
                    model.copies.borrow_mut().insert(slot);
                    area.mark_cached(slot, true);
                }
            }
            Op::Reclaim { most } => {
                let before = model.used();
                let freed = area.reclaim_full(most.into(), &model);
                assert_eq!(before - model.used(), freed);
            }
            Op::Discard { most } => {
                area.discard_some(most.into());
            }
        }
        area.validate().unwrap();
    }
    // Slot 0 counts as used once its cluster is.
    assert!(area.used() - model.used() <= 1);
}

fuzz_target!(|case: Case| run(case));
