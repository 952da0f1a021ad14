//! Wakes reclaimers that nap for seconds without work (`long_nap.rs` in the agent) when each of
//! them must look.

use lowtide_core::store::MAX_AREAS;
use lowtide_wire::Watermarks;
use lowtide_wire::segment::Settings;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::supervisor::shared_memory::Shared;

#[derive(Default)]
pub struct Bell {
    asked: Asked,
    /// The run was above its register mark.
    is_near: bool,
}

/// All requests in the settings that need an answer or an action of the processes.
#[derive(Default, PartialEq, Eq)]
struct Asked {
    limit: u64,
    numbers: [u64; 3],
    orders: [u64; MAX_AREAS],
}

impl Asked {
    fn by(settings: &Settings) -> Asked {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Asked {
            limit: get(&settings.ram_limit),
            numbers: [&settings.reclaim.number, &settings.question, &settings.fills_asked].map(get),
            orders: settings.swap.each_ref().map(|area| area.order().raw()),
        }
    }
}

impl Bell {
    /// Wakes all reclaimers if needed: call it at each look at the tree. `ram`: bytes used by the
    /// run.
    pub fn look(&mut self, shared: &Shared, ram: u64) {
        let asked = Asked::by(shared.settings());
        let comes_near = self.comes_near(Watermarks::of(asked.limit), ram);
        if asked != self.asked || comes_near {
            self.asked = asked;
            shared.segment().ring();
        }
    }

    /// Whether the run has just passed its register mark, at which processes register memory. Once,
    /// until the run is far below the mark again.
    fn comes_near(&mut self, marks: Watermarks, ram: u64) -> bool {
        if ram <= marks.earliest_register() {
            self.is_near = false;
        }
        ram > marks.register() && !std::mem::replace(&mut self.is_near, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rings_once_each_time_that_the_run_comes_near_its_limit() {
        let marks = Watermarks::of(256 << 20);
        let (near, far, between) = (marks.register() + 1, marks.earliest_register(), marks.register());
        let mut bell = Bell::default();
        let rings = [between, near, near, between, near, far, between, near].map(|ram| bell.comes_near(marks, ram));
        assert_eq!(rings, [false, true, false, false, false, false, false, true]);
    }
}
