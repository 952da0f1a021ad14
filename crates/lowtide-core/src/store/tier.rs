//! Chooses the tier of a page, the pool or a device, for `store_pages.rs`, `gather.rs` and
//! `write_out.rs`. (`shrink.rs` moves pages to the device later.)
//!
//! 1. While the pool takes nothing ([`Tiers::offer`], before compression), the page goes to a
//!    device.
//! 2. With a device, pages that do not compress to 7/8 go there, and, once the pool is mostly
//!    taken, those that do not compress to half ([`Tiers::choose`]).
//! 3. A few pages for a device wait in the pool for more ([`waits_for`]).
//! 4. If no device takes a page, the choice is made again without devices.

use crate::vm::PAGE_SIZE;

/// Runs of this many pages for a device do not wait.
const LONG: usize = 64;
/// Most waiting pages for each thread, up to a [`SHARE`]th of the pool.
pub(super) const ENOUGH: usize = 128;
pub(super) const SHARE: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tiers {
    /// The pool takes pages.
    pub pool: bool,
    /// There is a device, and none has failed to take the page.
    pub device: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tier {
    /// Compressed, or raw if incompressible.
    Pool,
    Device,
    /// The page is refused.
    Nowhere,
}

impl Tiers {
    pub(super) fn offer(self) -> Tier {
        match self {
            Tiers { pool: true, .. } => Tier::Pool,
            Tiers { device: true, .. } => Tier::Device,
            _ => Tier::Nowhere,
        }
    }

    /// The tier of a page of `len` bytes; `None`: incompressible. `mostly_taken`: over three fifths
    /// of the limit are taken, so each byte costs needed memory, and a page must halve to be worth
    /// it.
    pub(super) fn choose(self, len: Option<usize>, mostly_taken: impl FnOnce() -> bool) -> Tier {
        let pays = |len: usize| len <= PAGE_SIZE / 2 || !mostly_taken();
        match self.offer() {
            Tier::Pool if self.device && !len.is_some_and(pays) => Tier::Device,
            tier => tier,
        }
    }

    pub(super) fn without_pool(self) -> Tier {
        Tiers { pool: false, ..self }.offer()
    }
}

/// The number of pages to gather before `pages` pages are written, if they wait.
pub(super) fn waits_for(pages: usize, pool_limit: usize) -> Option<usize> {
    let enough = ENOUGH.min(pool_limit / PAGE_SIZE / SHARE);
    (pages < LONG.min(enough)).then_some(enough)
}

/// In order. A device's slots come first, so that the page can be written there later under its
/// entry.
pub(super) fn slots_in_pool(device: bool) -> &'static [Slots] {
    if device { &[Slots::OfDevices, Slots::OfRam] } else { &[Slots::OfRam] }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slots {
    /// Of devices that can be written to now.
    Writable,
    /// Of devices, preferably writable ones.
    OfDevices,
    /// Without a device.
    OfRam,
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Tiers = Tiers { pool: true, device: true };
    const POOL: Tiers = Tiers { pool: true, device: false };
    const DEVICE: Tiers = Tiers { pool: false, device: true };
    const NONE: Tiers = Tiers { pool: false, device: false };

    #[test]
    fn the_pool_comes_first_and_without_any_tier_a_page_is_refused() {
        let offers = [BOTH, POOL, DEVICE, NONE].map(Tiers::offer);
        assert_eq!(offers, [Tier::Pool, Tier::Pool, Tier::Device, Tier::Nowhere]);
        let afterwards = [BOTH, POOL, DEVICE, NONE].map(Tiers::without_pool);
        assert_eq!(afterwards, [Tier::Device, Tier::Nowhere, Tier::Device, Tier::Nowhere]);
    }

    #[test]
    fn what_does_not_pay_goes_to_a_device_if_there_is_one() {
        let (half, more) = (Some(PAGE_SIZE / 2), Some(PAGE_SIZE / 2 + 1));
        let choices = |tiers: Tiers, taken: bool| [half, more, None].map(|len| tiers.choose(len, || taken));
        assert_eq!(choices(BOTH, false), [Tier::Pool, Tier::Pool, Tier::Device]);
        assert_eq!(choices(BOTH, true), [Tier::Pool, Tier::Device, Tier::Device]);
        for taken in [false, true] {
            assert_eq!(choices(POOL, taken), [Tier::Pool; 3], "there is no better place");
            assert_eq!(choices(DEVICE, taken), [Tier::Device; 3], "however small it is");
            assert_eq!(choices(NONE, taken), [Tier::Nowhere; 3]);
        }
    }

    #[test]
    fn how_full_the_pool_is_is_asked_only_where_it_matters() {
        let never = || -> bool { panic!("asked in vain") };
        assert_eq!(BOTH.choose(Some(PAGE_SIZE / 2), never), Tier::Pool);
        assert_eq!(BOTH.choose(None, never), Tier::Device);
        assert_eq!(POOL.choose(Some(PAGE_SIZE - 1), never), Tier::Pool);
        assert_eq!(DEVICE.choose(Some(PAGE_SIZE - 1), never), Tier::Device);
    }

    #[test]
    fn few_pages_wait_for_more_where_the_pool_has_room_for_them() {
        let large = 1 << 30;
        assert_eq!([1, LONG - 1, LONG].map(|pages| waits_for(pages, large)), [Some(ENOUGH), Some(ENOUGH), None]);
        assert_eq!([1, 2].map(|pages| waits_for(pages, 32 * PAGE_SIZE)), [Some(2), None]);
        assert_eq!(waits_for(1, 0), None, "nothing is kept in the pool");
    }

    #[test]
    fn a_page_in_the_pool_has_a_slot_of_a_device_if_it_can() {
        assert_eq!(slots_in_pool(true), [Slots::OfDevices, Slots::OfRam]);
        assert_eq!(slots_in_pool(false), [Slots::OfRam]);
    }
}
