//! Whose an address is: asked in a signal handler, so without a lock and without waiting.
//!
//! Readers look at a sorted list that nobody changes. A thread that changes it publishes another one, and frees the old one
//! when all that may still look at it have left: they are counted, by the parity of an epoch that ends with the change (as in
//! Linux's SRCU).

use crate::sync::{AtomicPtr, AtomicUsize, Life, Ordering, constant, yield_now};

/// Ranges of addresses, and something that belongs to each.
pub struct Addresses<T> {
    current: AtomicPtr<List<T>>,
    epoch: AtomicUsize,
    readers: [Line; 2],
}

/// A list that nobody changes.
struct List<T> {
    entries: Vec<Entry<T>>,
    life: Life,
}

/// A counter with a cache line of its own.
#[repr(align(64))]
struct Line(AtomicUsize);

/// `start .. end` is `of`'s.
#[derive(Clone, Copy)]
struct Entry<T> {
    start: usize,
    end: usize,
    of: T,
}

impl<T: Copy> Addresses<T> {
    constant! {
        /// None.
        fn new() -> Self {
            Addresses {
                current: AtomicPtr::new(core::ptr::null_mut()),
                epoch: AtomicUsize::new(0),
                readers: [Line(AtomicUsize::new(0)), Line(AtomicUsize::new(0))],
            }
        }
    }

    /// What belongs to `addr`. Safe in signal handlers, by any thread.
    pub fn find(&self, addr: usize) -> Option<T> {
        let readers = loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let readers = &self.readers[epoch % 2].0;
            readers.fetch_add(1, Ordering::SeqCst);
            // Else whoever ended that epoch may not wait for this reader any more.
            if self.epoch.load(Ordering::SeqCst) % 2 == epoch % 2 {
                break readers;
            }
            readers.fetch_sub(1, Ordering::SeqCst);
        };
        // SAFETY: null, or a list that is freed only when no reader of the epoch in which it was replaced is left; this is one.
        let list = unsafe { self.current.load(Ordering::SeqCst).as_ref() };
        let found = list.and_then(|list| {
            list.life.goes_on();
            let entry = list.entries.get(list.entries.partition_point(|entry| entry.end <= addr))?;
            (entry.start <= addr).then_some(entry.of)
        });
        // Pairs with the look in `change`, after which the list is freed.
        readers.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// Adds a range, which overlaps no other.
    ///
    /// # Safety
    /// One thread at a time changes the list.
    pub unsafe fn insert(&self, start: usize, end: usize, of: T) {
        // SAFETY: handed on to the caller.
        unsafe { self.change(|list| list.insert(list.partition_point(|entry| entry.start < start), Entry { start, end, of })) }
    }

    /// Takes out the range that begins at `start`.
    ///
    /// # Safety
    /// As for [`Addresses::insert`].
    pub unsafe fn remove(&self, start: usize) {
        // SAFETY: handed on to the caller.
        unsafe { self.change(|list| list.retain(|entry| entry.start != start)) }
    }

    /// # Safety
    /// As for [`Addresses::insert`].
    unsafe fn change(&self, change: impl FnOnce(&mut Vec<Entry<T>>)) {
        // SAFETY: this thread alone replaces and frees lists.
        let list = unsafe { self.current.load(Ordering::SeqCst).as_ref() };
        let mut entries = list.map_or_else(Vec::new, |list| list.entries.clone());
        change(&mut entries);
        let new = Box::new(List { entries, life: Life::new() });
        let old = self.current.swap(Box::into_raw(new), Ordering::SeqCst);
        let ended = self.epoch.fetch_add(1, Ordering::SeqCst);
        // Read by a change of nothing: a reader that is not seen here counts itself later, and so sees the new list and epoch.
        while self.readers[ended % 2].0.fetch_add(0, Ordering::SeqCst) > 0 {
            yield_now();
        }
        if !old.is_null() {
            // SAFETY: from a box; readers that came before the swap have left, and others can't find it.
            let old = unsafe { Box::from_raw(old) };
            old.life.ends();
        }
    }

    /// In a forked child: the ranges are its parent's. (The list is left to itself: the thread that was changing it is not
    /// here.)
    ///
    /// # Safety
    /// There is one thread.
    pub unsafe fn forget_in_child(&self) {
        self.current.store(core::ptr::null_mut(), Ordering::SeqCst);
        self.readers.iter().for_each(|readers| readers.0.store(0, Ordering::SeqCst));
    }
}
