//! An area for each CPU: threads share nothing. A second thread's loss here is the machine's.

use lowtide_core::lock::rank;
use lowtide_core::percpu;
use lowtide_core::slot::{Area, Policy};

use super::{Searched, Slots, Taken, area};

/// Bits of a slot's number inside its CPU's area.
const BITS: u32 = 32;

/// Threads must be pinned.
pub struct Apart(Vec<Area>);

impl Apart {
    /// Areas of `slots` slots each.
    ///
    /// # Errors
    /// As [`area`].
    pub fn new(slots: u64) -> Result<Apart, String> {
        (0..percpu::count()).map(|_| area(slots, Policy::default())).collect::<Result<_, _>>().map(Apart)
    }
}

impl Slots for Apart {
    const SHARED: u8 = rank::LISTS;
    const LOCAL: u8 = rank::CLUSTER;

    #[inline]
    fn alloc(&self, order: u32) -> Option<u64> {
        let cpu = percpu::current();
        self.0[cpu].alloc(order).map(|first| (cpu as u64) << BITS | first)
    }

    #[inline]
    fn free(&self, first: u64, n: u64) {
        Slots::free(&self.0[(first >> BITS) as usize], first & ((1 << BITS) - 1), n);
    }

    fn has_free_run(&self, order: u32) -> bool {
        self.0.iter().any(|area| area.has_free_run(order))
    }

    fn taken(&self) -> Taken {
        self.0
            .iter()
            .map(Slots::taken)
            .fold(Taken::default(), |a, b| Taken { shared: a.shared + b.shared, local: a.local + b.local })
    }

    fn searched(&self) -> Searched {
        let add = |a: Searched, b: Searched| Searched { searches: a.searches + b.searches, opened: a.opened + b.opened };
        self.0.iter().map(Slots::searched).fold(Searched::default(), add)
    }
}
