//! Model checks of the slot allocator. Loom tries all orders of events of small cases (with at most two preemptions, unless
//! `LOOM_MAX_PREEMPTIONS` says otherwise), shuttle many random ones of large cases. Beside each check stands the same check of
//! a protocol with a step missing, which has to fail.

#[cfg(feature = "loom")]
mod availability;
#[cfg(feature = "loom")]
mod clusters;
#[cfg(feature = "loom")]
mod holders;
#[cfg(feature = "loom")]
mod index;
#[cfg(feature = "loom")]
mod references;

#[cfg(all(feature = "shuttle", not(feature = "loom")))]
mod together;

use super::{Area, AreaConfig};

fn area(cfg: AreaConfig) -> Area {
    Area::new(None, cfg).unwrap()
}

/// Runs `f` in all orders of events.
#[cfg(feature = "loom")]
fn explore(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(2);
    model.max_branches = 10_000;
    model.check(f);
}
