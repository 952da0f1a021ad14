//! An allocation and a free with one thread, counted by instructions: on a shared machine, times of
//! a few nanoseconds show only that they are short.

use std::cell::RefCell;

use super::{FOLIOS, FULL, Load, MIXED, PAGES, Policy, Rng, Worker};
use crate::report::Table;
use crate::scale::{Counts, stepper};
use crate::slots::{Baseline, Searched, Slots, Taken, area};

const COUNTED: usize = 500;

#[derive(Debug, Default)]
struct Sum {
    calls: u64,
    instructions: u64,
    locked: u64,
    /// Bytes of the deepest stack.
    stack: u64,
}

impl Sum {
    fn add(&mut self, counts: Counts) {
        self.calls += 1;
        self.instructions += counts.instructions;
        self.locked += counts.locked;
        self.stack = self.stack.max(counts.stack);
    }

    /// Instructions and locked ones for each call, and bytes of stack.
    fn row(&self) -> [String; 3] {
        let each = |n: u64| n as f64 / self.calls.max(1) as f64;
        [format!("{:.0}", each(self.instructions)), format!("{:.2}", each(self.locked)), self.stack.to_string()]
    }
}

#[derive(Debug, Default)]
struct Sums {
    is_on: bool,
    alloc: Sum,
    free: Sum,
}

/// An allocator with counted calls, for one thread.
struct Counting<S> {
    slots: S,
    sums: RefCell<Sums>,
}

// SAFETY: only one thread uses it; the trait requires Sync.
unsafe impl<S: Sync> Sync for Counting<S> {}

impl<S> Counting<S> {
    fn count<T>(&self, of: fn(&mut Sums) -> &mut Sum, f: impl FnOnce() -> T) -> T {
        if !self.sums.borrow().is_on {
            return f();
        }
        let ((), empty) = stepper::counted(|| ());
        let (value, mut counts) = stepper::counted(f);
        counts.instructions -= empty.instructions;
        of(&mut self.sums.borrow_mut()).add(counts);
        value
    }
}

impl<S: Slots> Slots for Counting<S> {
    const SHARED: u8 = S::SHARED;
    const LOCAL: u8 = S::LOCAL;

    fn alloc(&self, order: u32) -> Option<u64> {
        self.count(|sums| &mut sums.alloc, || self.slots.alloc(order))
    }

    fn free(&self, first: u64, n: u64) {
        self.count(|sums| &mut sums.free, || self.slots.free(first, n));
    }

    fn has_free_run(&self, order: u32) -> bool {
        self.slots.has_free_run(order)
    }

    fn taken(&self) -> Taken {
        self.slots.taken()
    }

    fn searched(&self) -> Searched {
        self.slots.searched()
    }
}

/// Instructions of the baseline and ours for each load, on an area of `size` slots. Spoils later
/// timings in this process.
pub(super) fn table(size: u64) -> Result<Table, String> {
    stepper::start()?;
    let columns = ["load", "", "alloc: instructions", "locked", "stack, bytes", "free: instructions", "locked", "stack, bytes"];
    let mut table = Table::new("one thread: what an allocation and a free execute, and the deepest stack", &columns);
    for load in [PAGES, FOLIOS, MIXED] {
        let baseline = counted(Baseline::new(size), size, load);
        let ours = counted(area(size, Policy::default())?, size, load);
        for (name, sums) in [("baseline", baseline), ("ours", ours)] {
            let words = [load.0.to_owned(), name.to_owned()];
            table.row(words.into_iter().chain(sums.alloc.row()).chain(sums.free.row()));
        }
    }
    Ok(table)
}

fn counted<S: Slots>(slots: S, size: u64, (_, orders): Load) -> Sums {
    let slots = Counting { slots, sums: RefCell::default() };
    let share = (size as f64 * FULL) as u64;
    let mut worker = Worker { slots: &slots, orders, share, used: 0, held: Vec::new(), rng: Rng::with_seed(0), fallbacks: 0 };
    worker.settle_in();
    slots.sums.borrow_mut().is_on = true;
    (0..COUNTED).for_each(|_| worker.step());
    slots.sums.into_inner()
}
