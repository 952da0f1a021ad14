//! Reclaimers with nothing to do sleep for seconds (`long_nap.rs` in the agent). They are woken where each has to look.

use lowtide_core::store::MAX_AREAS;
use lowtide_pager::reclaim::Watermarks;
use lowtide_pager::segment::Settings;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::supervisor::shared_memory::Shared;

/// What they were last woken for.
#[derive(Default)]
pub struct Bell {
    asked: Asked,
    /// The run was above its register mark.
    is_near: bool,
}

/// All that processes are asked by the settings, as far as they have to answer or do something.
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
    /// Looks whether there is reason to wake all: to be asked at each look at the tree, of a run that uses `ram` bytes.
    pub fn look(&mut self, shared: &Shared, ram: u64) {
        let asked = Asked::by(shared.settings());
        let comes_near = self.comes_near(Watermarks::of(asked.limit), ram);
        if asked != self.asked || comes_near {
            self.asked = asked;
            shared.segment().ring();
        }
    }

    /// Whether the run has passed its register mark: those that are worth it register their memory. Once, until it was far
    /// below it again.
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
