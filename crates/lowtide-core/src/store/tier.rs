//! The tiers, the pool and the devices: THE place where it is decided to which of them a page goes. What is decided here is
//! carried out elsewhere: `store_pages.rs` puts pages into the pool and takes slots for them, `gather.rs` has pages wait,
//! `write_out.rs` writes them, `shrink.rs` takes them from the pool to the device later on.
//!
//! 1. While the pool takes nothing ([`Tiers::offer`], asked before the page is compressed), the page is for a device.
//! 2. Where there is a device, pages that do not compress to 7/8 are for it, and, once the pool is mostly taken, those that do
//!    not compress to half ([`Tiers::choose`]).
//! 3. Pages for a device that are few wait in the pool for more ([`waits_for`]).
//! 4. What no device takes is decided anew, as if there were none: it goes to the pool, however large it is.
//!
//! What no tier takes is refused.

use crate::vm::PAGE_SIZE;

/// Pages for the device that come in as large a number as this are written at once.
const LONG: usize = 64;
/// Most pages that wait for others, for each thread; where the pool is small, a [`SHARE`]th of it.
pub(super) const ENOUGH: usize = 128;
pub(super) const SHARE: usize = 16;

/// The tiers that a page may go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tiers {
    /// The pool takes pages.
    pub pool: bool,
    /// There is a device, and none has failed to take the page.
    pub device: bool,
}

/// Where a page goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tier {
    /// Into the pool: compressed, or, if it can't be, as it is.
    Pool,
    /// To a device.
    Device,
    /// Nowhere: it is refused.
    Nowhere,
}

impl Tiers {
    /// Where a page goes as far as is known before it is compressed.
    pub(super) fn offer(self) -> Tier {
        match self {
            Tiers { pool: true, .. } => Tier::Pool,
            Tiers { device: true, .. } => Tier::Device,
            _ => Tier::Nowhere,
        }
    }

    /// Where a page goes that was compressed to `len` bytes; `None`: it is incompressible. `mostly_taken`: whether the pool
    /// holds more than three fifths of its limit. From there on each byte of it is taken from what the program needs most, and
    /// on a device the page takes none: only what becomes half as long is worth its place. Asked only where it matters.
    pub(super) fn choose(self, len: Option<usize>, mostly_taken: impl FnOnce() -> bool) -> Tier {
        let pays = |len: usize| len <= PAGE_SIZE / 2 || !mostly_taken();
        match self.offer() {
            Tier::Pool if self.device && !len.is_some_and(pays) => Tier::Device,
            tier => tier,
        }
    }

    /// Where a page goes that the pool had no room for after all.
    pub(super) fn without_pool(self) -> Tier {
        Tiers { pool: false, ..self }.offer()
    }
}

/// Whether `pages` pages for a device wait in the pool, whose limit is `pool_limit` bytes, and if so until how many do.
pub(super) fn waits_for(pages: usize, pool_limit: usize) -> Option<usize> {
    let enough = ENOUGH.min(pool_limit / PAGE_SIZE / SHARE);
    (pages < LONG.min(enough)).then_some(enough)
}

/// In the order in which they are tried, the slots for a page in the pool. `device`: there is one. Then rather its slots, so
/// that the page can be written there later on without its entry changing.
pub(super) fn slots_in_pool(device: bool) -> &'static [Slots] {
    if device { &[Slots::OfDevices, Slots::OfRam] } else { &[Slots::OfRam] }
}

/// Which slots will do for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slots {
    /// Of devices that can be written to now.
    Writable,
    /// Of devices, rather of such as can be written to now.
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
        // A sixteenth of 32 pages.
        assert_eq!([1, 2].map(|pages| waits_for(pages, 32 * PAGE_SIZE)), [Some(2), None]);
        assert_eq!(waits_for(1, 0), None, "nothing is kept in the pool");
    }

    #[test]
    fn a_page_in_the_pool_has_a_slot_of_a_device_if_it_can() {
        assert_eq!(slots_in_pool(true), [Slots::OfDevices, Slots::OfRam]);
        assert_eq!(slots_in_pool(false), [Slots::OfRam]);
    }
}
