//! Debug builds: the ranks that each thread holds, and the assertion that it waits only for higher
//! ones.
//!
//! In a table by thread number: lowtide's threads in foreign programs have no thread-local storage.

#[cfg(debug_assertions)]
mod checked {
    use crate::lock::rank;
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const PLACES: usize = 4096;
    /// Probing distance: most threads with the same first place that hold locks.
    const WINDOW: usize = 128;

    /// Thread number in the upper half, held ranks (a bit each) in the lower.
    static HELD: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

    fn find(tid: u64) -> Option<&'static AtomicU64> {
        let first = tid as usize * 31;
        (first..first + WINDOW).map(|i| &HELD[i % PLACES]).find(|p| p.load(Relaxed) >> 32 == tid)
    }

    fn tid() -> u64 {
        rustix::thread::gettid().as_raw_nonzero().get() as u64
    }

    pub(in crate::lock) fn held() -> u32 {
        find(tid()).map_or(0, |p| p.load(Relaxed) as u32)
    }

    pub(in crate::lock) fn took(rank: u8) {
        if rank == rank::UNRANKED {
            return;
        }
        let tid = tid();
        if let Some(place) = find(tid) {
            place.fetch_or(1 << rank, Relaxed);
            return;
        }
        let first = tid as usize * 31;
        let mine = tid << 32 | 1 << rank;
        let claimed = (first..first + WINDOW).map(|i| &HELD[i % PLACES]).any(|p| {
            let seen = p.load(Relaxed);
            seen as u32 == 0 && p.compare_exchange(seen, mine, Relaxed, Relaxed).is_ok()
        });
        assert!(claimed, "no place for this thread in the table of held locks");
    }

    pub(in crate::lock) fn gave(rank: u8) {
        if rank != rank::UNRANKED
            && let Some(place) = find(tid())
        {
            place.fetch_and(!(1 << rank), Relaxed);
        }
    }
}

/// Panics in debug builds if this thread must not wait for a lock of `rank`.
#[inline(always)]
pub(super) fn assert_may_wait(rank: u8) {
    #[cfg(debug_assertions)]
    if rank != super::rank::UNRANKED {
        let held = checked::held();
        assert!(held >> rank == 0, "lock order: waits for {} holding {held:#b}", super::rank::name(rank));
    }
    let _ = rank;
}

/// Panics in debug builds if this thread holds a ranked lock before I/O or a callback.
#[inline(always)]
pub(crate) fn assert_holds_none() {
    #[cfg(debug_assertions)]
    {
        let held = checked::held();
        assert!(held == 0, "lock order: I/O holding {held:#b}");
    }
}

#[inline(always)]
pub(super) fn took(rank: u8) {
    #[cfg(debug_assertions)]
    checked::took(rank);
    let _ = rank;
}

#[inline(always)]
pub(super) fn gave(rank: u8) {
    #[cfg(debug_assertions)]
    checked::gave(rank);
    let _ = rank;
}

#[cfg(test)]
#[test]
fn it_is_asserted_where_all_is_tested() {
    // The build of `tests/run.py`.
    assert!(cfg!(debug_assertions) || std::env::var_os("LOWTIDE_BUILT").is_none());
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use crate::lock::{Lock, rank};

    #[test]
    fn upwards_is_allowed_and_trying_is_always() {
        let (cluster, lists) = (Lock::<(), { rank::CLUSTER }>::new(()), Lock::<(), { rank::LISTS }>::new(()));
        let a = cluster.lock();
        let b = lists.lock();
        drop((a, b));
        let b = lists.lock();
        let a = cluster.try_lock().unwrap();
        drop((a, b));
        drop(cluster.lock());
    }

    #[test]
    #[should_panic(expected = "lock order")]
    fn downwards_is_caught() {
        let (cluster, lists) = (Lock::<(), { rank::CLUSTER }>::new(()), Lock::<(), { rank::LISTS }>::new(()));
        let _lists = lists.lock();
        let _cluster = cluster.lock();
    }

    #[test]
    #[should_panic(expected = "lock order")]
    fn two_of_one_rank_are_caught() {
        let (a, b) = (Lock::<(), { rank::CLUSTER }>::new(()), Lock::<(), { rank::CLUSTER }>::new(()));
        let _a = a.lock();
        let _b = b.lock();
    }
}
