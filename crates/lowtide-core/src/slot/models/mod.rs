//! Model checks of the slot allocator: all orders of small cases (loom, two preemptions or
//! `LOOM_MAX_PREEMPTIONS`), many random ones of large cases (shuttle). Each check also runs with a
//! step missing, and must fail.

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

#[cfg(feature = "loom")]
fn explore(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(2);
    model.max_branches = 10_000;
    model.check(f);
}
