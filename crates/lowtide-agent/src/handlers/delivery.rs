//! Where faults are reported: at the userfaultfd, or in the ring while threads serve their own.

use lowtide_pager::fault::{Handler, Turn};
use lowtide_pager::pager::Pager;

use crate::handlers::fault_ring::{self, FaultRing};
use crate::handlers::in_thread;

#[derive(Clone, Copy)]
pub enum Delivery {
    Userfaultfd,
    Ring(&'static FaultRing),
}

impl Delivery {
    /// It changes while a handler runs: once, and back in a forked child.
    pub fn now() -> Delivery {
        fault_ring::active().map_or(Delivery::Userfaultfd, Delivery::Ring)
    }

    /// Serves the next reports. Waits for none.
    pub fn next(self, pager: &Pager, handler: &mut Handler) -> Turn {
        let Delivery::Ring(ring) = self else { return handler.turn(pager) };
        let reads = ring.must_read(pager) || handler.wants_to_read(pager);
        let turn = handler.turn_with(pager, ring.take(pager), reads);
        if let Some(stack) = ring.missing_stack() {
            in_thread::make_stack(pager, handler, stack);
        }
        turn
    }

    /// Waits at most `ms` milliseconds for a report (negative: for ever). The caller holds no lock.
    pub fn wait(self, pager: &Pager, handler: &mut Handler, ms: i32) {
        let Delivery::Ring(ring) = self else { return handler.wait(pager, ms) };
        let is_read = handler.wants_to_read(pager);
        handler.wait_by(pager, ms, |time| ring.wait(pager, is_read, time));
    }
}
