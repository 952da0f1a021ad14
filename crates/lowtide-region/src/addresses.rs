//! Maps addresses to their owners, for signal handlers: without locks or waiting.
//!
//! Readers use an immutable sorted list. A change publishes a new list, and frees the old one after
//! its possible readers have left, counted by an epoch's parity (as in Linux's SRCU).

use crate::sync::{AtomicPtr, AtomicUsize, Life, Ordering, constant, yield_now};

pub struct Addresses<T> {
    current: AtomicPtr<List<T>>,
    epoch: AtomicUsize,
    readers: [Line; 2],
}

struct List<T> {
    entries: Vec<Entry<T>>,
    life: Life,
}

#[repr(align(64))]
struct Line(AtomicUsize);

#[derive(Clone, Copy)]
struct Entry<T> {
    start: usize,
    end: usize,
    of: T,
}

impl<T: Copy> Addresses<T> {
    constant! {
        fn new() -> Self {
            Addresses {
                current: AtomicPtr::new(core::ptr::null_mut()),
                epoch: AtomicUsize::new(0),
                readers: [Line(AtomicUsize::new(0)), Line(AtomicUsize::new(0))],
            }
        }
    }

    /// The owner of `addr`. Safe in signal handlers, by any thread.
    pub fn find(&self, addr: usize) -> Option<T> {
        let readers = loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let readers = &self.readers[epoch % 2].0;
            readers.fetch_add(1, Ordering::SeqCst);
            // Otherwise the change that ended the epoch may not wait for this reader.
            if self.epoch.load(Ordering::SeqCst) % 2 == epoch % 2 {
                break readers;
            }
            readers.fetch_sub(1, Ordering::SeqCst);
        };
        // SAFETY: null, or a list that is freed only after all readers of its last epoch, of which
        // this is one.
        let list = unsafe { self.current.load(Ordering::SeqCst).as_ref() };
        let found = list.and_then(|list| {
            list.life.goes_on();
            let entry = list.entries.get(list.entries.partition_point(|entry| entry.end <= addr))?;
            (entry.start <= addr).then_some(entry.of)
        });
        // Pairs with the read in `change`, which then frees the list.
        readers.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// Adds a range that overlaps no other.
    ///
    /// # Safety
    /// One thread at a time changes the list.
    pub unsafe fn insert(&self, start: usize, end: usize, of: T) {
        // SAFETY: as the caller promises.
        unsafe { self.change(|list| list.insert(list.partition_point(|entry| entry.start < start), Entry { start, end, of })) }
    }

    /// Removes the range that begins at `start`.
    ///
    /// # Safety
    /// As for [`Addresses::insert`].
    pub unsafe fn remove(&self, start: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.change(|list| list.retain(|entry| entry.start != start)) }
    }

    /// # Safety
    /// As for [`Addresses::insert`].
    unsafe fn change(&self, change: impl FnOnce(&mut Vec<Entry<T>>)) {
        // SAFETY: only this thread replaces and frees lists.
        let list = unsafe { self.current.load(Ordering::SeqCst).as_ref() };
        let mut entries = list.map_or_else(Vec::new, |list| list.entries.clone());
        change(&mut entries);
        let new = Box::new(List { entries, life: Life::new() });
        let old = self.current.swap(Box::into_raw(new), Ordering::SeqCst);
        let ended = self.epoch.fetch_add(1, Ordering::SeqCst);
        // A write, though of nothing: a reader not seen here counts itself later, and so sees the
        // new list and epoch.
        while self.readers[ended % 2].0.fetch_add(0, Ordering::SeqCst) > 0 {
            yield_now();
        }
        if !old.is_null() {
            // SAFETY: from a box; earlier readers have left, and others can't find it.
            let old = unsafe { Box::from_raw(old) };
            old.life.ends();
        }
    }

    /// Leaks the list: the thread that was changing it is not here.
    ///
    /// # Safety
    /// There is one thread.
    pub unsafe fn forget_in_child(&self) {
        self.current.store(core::ptr::null_mut(), Ordering::SeqCst);
        self.readers.iter().for_each(|readers| readers.0.store(0, Ordering::SeqCst));
    }
}
