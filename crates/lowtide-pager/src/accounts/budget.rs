//! The RAM budget: limit, measurement, and changes since.
//!
//! The kernel measures (`/proc/self/statm`). In between the pager counts its own memory and the
//! pages it installs and takes, and processes publish growth ([`Membership`]).

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering};

use lowtide_core::ledger::Ledger;
use lowtide_core::vm::PAGE_SIZE;

use lowtide_wire::Watermarks;
use lowtide_wire::segment::{Membership, Proc, Segment};

/// A run's RAM budget in one process, in bytes. Thread-safe; estimates until measured.
#[derive(Debug, Default)]
pub struct RamBudget {
    asked: AtomicU64,
    floor: AtomicU64,
    ceiling: AtomicU64,
    measured: AtomicU64,
    /// Bytes of program pages added since.
    program: AtomicI64,
    /// lowtide's bytes, now and when measured.
    own: AtomicI64,
    own_then: AtomicI64,
    uncounted: AtomicI64,
    published: AtomicPtr<Proc>,
    membership: Membership,
    told_then: AtomicI64,
    calm: AtomicBool,
    reserved: AtomicU64,
}

/// Room for pages about to come; used, to other threads.
#[derive(Debug)]
pub struct Reserved<'a> {
    budget: &'a RamBudget,
    /// Pages allowed: at least one, fewer than wanted after other reservations.
    pub pages: usize,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.budget.reserved.fetch_sub(bytes_of(self.pages), Ordering::Relaxed);
    }
}

fn bytes_of(pages: usize) -> u64 {
    (pages * PAGE_SIZE) as u64
}

impl RamBudget {
    /// Joins `run` as `mine`; again in a forked child.
    pub fn join(&self, run: &'static Segment, mine: &'static Proc) {
        self.membership.join(run, mine);
        // A forked child has none of these threads.
        self.reserved.store(0, Ordering::Relaxed);
    }

    /// Sets the run's limit.
    pub fn set_limit(&self, limit: u64) {
        self.asked.store(limit, Ordering::Relaxed);
    }

    /// The user's limit.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Sets the least that the run needs; 0: less than the limit.
    pub fn set_floor(&self, floor: u64) {
        self.floor.store(floor, Ordering::Relaxed);
    }

    /// Whether the user's limit can't be held.
    pub fn has_floor(&self) -> bool {
        self.floor.load(Ordering::Relaxed) > 0
    }

    /// The feasible limit: the user's, or a higher floor.
    pub fn limit(&self) -> u64 {
        self.asked().max(self.floor.load(Ordering::Relaxed))
    }

    /// Sets a temporary limit on the way down to a lowered one.
    pub fn set_ceiling(&self, ceiling: u64) {
        self.ceiling.store(ceiling, Ordering::Relaxed);
    }

    /// `asked`, or a higher ceiling; no floor.
    pub fn wanted(&self) -> u64 {
        self.asked().max(self.ceiling.load(Ordering::Relaxed))
    }

    /// `limit`, or a higher ceiling.
    pub fn ceiling(&self) -> u64 {
        self.limit().max(self.ceiling.load(Ordering::Relaxed))
    }

    /// Restarts counting, at a measurement.
    pub fn counted(&self) {
        self.program.store(0, Ordering::Relaxed);
        self.own_then.store(self.own.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// [`Membership::told`], for before the sum.
    pub fn told(&self) -> i64 {
        self.membership.told()
    }

    /// Sets the sum taken after [`RamBudget::counted`] and [`RamBudget::told`].
    pub fn added_up(&self, total: u64, told: i64) {
        self.told_then.store(told, Ordering::Relaxed);
        self.measured.store(total, Ordering::Relaxed);
    }

    /// Measures a process without a run.
    pub fn measured(&self, total: u64) {
        self.counted();
        self.added_up(total, self.told());
    }

    /// Adds program pages.
    pub fn add_pages(&self, pages: isize) {
        self.program.fetch_add(pages as i64 * PAGE_SIZE as i64, Ordering::Relaxed);
        self.membership.tell(self.grown());
    }

    /// Sets lowtide's bytes without a [`Ledger`].
    pub fn set_uncounted(&self, bytes: u64) {
        // Every fault comes here.
        if self.uncounted.load(Ordering::Relaxed) != bytes as i64 {
            let before = self.uncounted.swap(bytes as i64, Ordering::Relaxed);
            self.add(bytes as isize - before as isize);
        }
    }

    /// Pages moved to staging, `of_program` with memory. At once: otherwise the run seems to grow.
    pub fn moved_to_staging(&self, pages: usize, of_program: usize, uncounted: u64) {
        let before = self.uncounted.swap(uncounted as i64, Ordering::Relaxed);
        let own = (pages * PAGE_SIZE) as i64 + uncounted as i64 - before;
        self.program.fetch_sub((of_program * PAGE_SIZE) as i64, Ordering::Relaxed);
        self.add(own as isize);
    }

    /// Publishes to [`Proc::own_bytes`]; again in a forked child.
    pub fn publish_in(&self, proc: &'static Proc) {
        // Release: pairs with the Acquire in `add`.
        self.published.store(core::ptr::from_ref(proc).cast_mut(), Ordering::Release);
    }

    /// Bytes held by lowtide.
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed).max(0) as u64
    }

    fn grown(&self) -> i64 {
        let own = self.own.load(Ordering::Relaxed).wrapping_sub(self.own_then.load(Ordering::Relaxed));
        self.program.load(Ordering::Relaxed).wrapping_add(own)
    }

    /// The run's estimated use.
    pub fn now(&self) -> u64 {
        // Others may write anything: only a wrong number may result.
        let others = self.told().wrapping_sub(self.told_then.load(Ordering::Relaxed));
        self.measured.load(Ordering::Relaxed).saturating_add_signed(self.grown().wrapping_add(others))
    }

    /// The same without the others' growth.
    pub fn now_without_others(&self) -> u64 {
        self.measured.load(Ordering::Relaxed).saturating_add_signed(self.grown())
    }

    /// Sets whether all growth is counted, so that less must be kept free.
    pub fn set_calm(&self, calm: bool) {
        self.calm.store(calm, Ordering::Relaxed);
    }

    /// Watermarks of the feasible limit.
    pub fn watermarks(&self) -> Watermarks {
        Watermarks::of(self.limit()).when_calm(self.calm.load(Ordering::Relaxed))
    }

    /// Whether [`crate::fault::stream::MAX_WINDOW`] could pass the limit.
    pub fn is_near_limit(&self) -> bool {
        self.now() + (self.limit() / 32).clamp(3 << 20, 32 << 20) > self.ceiling()
    }

    /// Reserves room. Threads reserve before their pages count, so only the first gets all; each
    /// gets one page, which can't wait.
    pub fn reserve(&self, wanted: usize) -> Reserved<'_> {
        let others = self.reserved.fetch_add(bytes_of(wanted), Ordering::Relaxed);
        let room = self.ceiling().saturating_sub(self.now().saturating_add(others));
        let pages = if others == 0 { wanted } else { wanted.min((room / PAGE_SIZE as u64) as usize).max(1) };
        self.reserved.fetch_sub(bytes_of(wanted - pages), Ordering::Relaxed);
        Reserved { budget: self, pages }
    }

    /// Whether faults must evict first. Pages on their way into the pool count twice.
    pub fn at_limit(&self) -> bool {
        self.now() + (1 << 20) > self.ceiling()
    }

    /// Above a lowered limit; faults then bring in less than leaves.
    pub fn is_coming_down(&self) -> bool {
        let limit = self.limit();
        self.ceiling.load(Ordering::Relaxed) > limit && self.now() > limit
    }

    /// Whether arrivals must make room first: at the limit with reservations, or above a lowered
    /// limit.
    pub fn lacks_room(&self) -> bool {
        self.now() + self.reserved.load(Ordering::Relaxed) + (1 << 20) > self.ceiling() || self.is_coming_down()
    }

    /// Whether the reclaimer should evict.
    pub fn above_high(&self) -> bool {
        self.now() > self.watermarks().high()
    }
}

impl Ledger for RamBudget {
    fn add(&self, bytes: isize) {
        let own = self.own.fetch_add(bytes as i64, Ordering::Relaxed) + bytes as i64;
        // Acquire: pairs with the Release in `publish_in`. SAFETY: null, or a `'static` reference
        // from `publish_in`.
        if let Some(proc) = unsafe { self.published.load(Ordering::Acquire).as_ref() } {
            proc.own_bytes.store(own.max(0) as u64, Ordering::Relaxed);
        }
        self.membership.tell(self.grown());
    }
}

/// Smaller processes save less than lowtide takes.
const WORTHWHILE: u64 = 2 << 20;

/// Whether to register a process of `mine` bytes in a run of `total`: not while larger ones have
/// most memory. Equal ones all qualify.
pub fn is_worth_registering(mine: u64, total: u64, processes: u64) -> bool {
    mine >= WORTHWHILE && (mine >= total / 64 || mine >= total / processes.max(1) / 2)
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod run_tests;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn segment() -> std::boxed::Box<Segment> {
        let layout = std::alloc::Layout::new::<Segment>();
        // SAFETY: zeros are valid, allocated with this layout.
        unsafe { std::boxed::Box::from_raw(std::alloc::alloc_zeroed(layout).cast()) }
    }

    #[test]
    fn at_its_limit_a_run_is_above_all_watermarks_until_pages_have_left() {
        let b = RamBudget::default();
        for mib in [16, 17, 32, 64, 100, 512, 4096, 100_000] {
            b.set_limit(mib << 20);
            b.measured(b.limit());
            assert!(b.at_limit() && b.above_high());
            b.add_pages(-(mib as isize) * 64);
            assert!(!b.at_limit());
        }
    }

    #[test]
    fn what_goes_into_the_pool_is_not_freed() {
        let b = RamBudget::default();
        b.set_limit(100 << 20);
        b.set_uncounted(10 << 20);
        b.measured(90 << 20);
        b.add_pages(-512);
        b.set_uncounted(12 << 20);
        assert_eq!(b.now(), 90 << 20, "moved, not freed");
        b.set_uncounted(11 << 20);
        assert_eq!(b.now(), 89 << 20);
        b.measured(89 << 20);
        assert_eq!(b.now(), 89 << 20);
    }

    #[test]
    fn pages_on_their_way_into_staging_are_never_counted_twice() {
        let b = RamBudget::default();
        let run: &'static Segment = std::boxed::Box::leak(segment());
        let proc = run.claim(1).unwrap();
        b.publish_in(proc);
        b.set_limit(100 << 20);
        b.measured(90 << 20);
        b.set_uncounted(64 * PAGE_SIZE as u64);
        let most = b.now();
        b.moved_to_staging(128, 128, 0);
        assert_eq!((most, b.now()), ((90 << 20) + 64 * PAGE_SIZE as u64, 90 << 20), "half of a MOVE too much, then none");
        assert_eq!(proc.own_bytes.load(Ordering::Relaxed), 128 * PAGE_SIZE as u64, "others read it at once");
    }

    fn sixteen_ask(room: u64, wanted: usize) -> std::vec::Vec<usize> {
        let b = RamBudget::default();
        b.set_limit(64 << 20);
        b.measured((64 << 20) - room);
        let reserved: std::vec::Vec<_> = (0..16).map(|_| b.reserve(wanted)).collect();
        assert!(b.lacks_room(), "those that come next make room first");
        let pages = reserved.iter().map(|r| r.pages).collect();
        drop(reserved);
        assert_eq!(b.lacks_room(), room < 1 << 20, "what was reserved is over");
        pages
    }

    #[test]
    fn threads_that_ask_at_the_same_time_are_not_all_promised_the_same_room() {
        let room = |mib: usize| (mib << 20) as u64;
        let each: std::vec::Vec<_> = [512, 256].into_iter().chain([1; 14]).collect();
        assert_eq!(sixteen_ask(room(3), 512), each, "3 MiB are 768 pages");
        let each: std::vec::Vec<_> = [64; 4].into_iter().chain([1; 12]).collect();
        assert_eq!(sixteen_ask(room(1), 64), each, "1 MiB is 256 pages");
        assert_eq!(sixteen_ask(0, 64)[..3], [64, 1, 1], "one alone gets what it got before");
        assert_eq!(sixteen_ask(room(1), 1), [1; 16]);
        assert_eq!(sixteen_ask(room(1), 16), [16; 16], "it is just enough");
    }

    #[test]
    fn a_forked_child_has_nothing_of_what_its_parent_s_threads_have_reserved() {
        let run: &'static Segment = std::boxed::Box::leak(segment());
        let b = RamBudget::default();
        b.set_limit(64 << 20);
        core::mem::forget(b.reserve(64 << 8));
        assert!(b.lacks_room());
        b.join(run, run.claim(1).unwrap());
        assert!(!b.lacks_room());
    }

    #[test]
    fn a_floor_lifts_the_marks_and_not_what_was_asked_for() {
        let b = RamBudget::default();
        b.set_limit(100 << 20);
        b.set_floor(150 << 20);
        b.measured(140 << 20);
        assert_eq!((b.asked(), b.limit(), b.at_limit()), (100 << 20, 150 << 20, false));
        b.set_floor(0);
        assert!(b.at_limit());
    }

    #[test]
    fn above_a_lowered_limit_the_background_evicts_and_no_fault_does() {
        let b = RamBudget::default();
        b.set_limit(100 << 20);
        b.set_ceiling(208 << 20);
        b.measured(200 << 20);
        assert!(b.above_high() && !b.at_limit());
        b.add_pages(8 << 8);
        assert!(b.at_limit(), "it does not grow meanwhile");
        b.measured(90 << 20);
        b.set_ceiling(0);
        assert_eq!((b.above_high(), b.at_limit(), b.ceiling()), (false, false, 100 << 20));
    }

    #[test]
    fn the_processes_worth_registering_have_most_of_the_memory() {
        assert!(is_worth_registering(2 << 20, 2 << 20, 1));
        assert!(!is_worth_registering(1 << 20, 1 << 20, 1), "too small for anyone");
        let runs: [&dyn Fn(u64) -> u64; 4] =
            [&|_| 5 << 20, &|i| (i + 4) << 20, &|i| if i == 0 { 4 << 30 } else { 4 << 20 }, &|i| {
                (4 << 20) + ((8 << 30) >> i.min(40))
            }];
        for of in runs {
            for processes in [1, 2, 63, 64, 65, 80, 200, 1000] {
                let sizes = (0..processes).map(of);
                let total: u64 = sizes.clone().sum();
                let registered: u64 = sizes.filter(|mine| is_worth_registering(*mine, total, processes)).sum();
                assert!(registered > total / 2, "{processes} processes: {} of {} MiB", registered >> 20, total >> 20);
            }
        }
        assert!(!is_worth_registering(4 << 20, 4100 << 20, 25), "while there are larger ones");
    }
}
