//! lowtide's threads in a process, counted while they start: for who asks how many the program has.

use core::sync::atomic::Ordering;

use super::Proc;

impl Proc {
    /// Starts a thread by `start`, which returns its id. It counts as lowtide's from the first
    /// moment. One caller at a time.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn starts_thread<E>(&self, start: impl FnOnce() -> Result<u32, E>) -> Result<u32, E> {
        // Release, both: pairs with the Acquire in `steadily`.
        self.thread_starts.fetch_add(1, Ordering::Release);
        let thread = start().inspect(|thread| self.thread_begins(*thread));
        self.thread_starts.fetch_add(1, Ordering::Release);
        thread
    }

    /// What `count` finds, which gets the number of lowtide's threads. None: one is starting, and
    /// may be counted on one side only.
    pub fn steadily<T>(&self, count: impl FnOnce(usize) -> T) -> Option<T> {
        // Acquire, both: pairs with the Release in `starts_thread`.
        let starts = self.thread_starts.load(Ordering::Acquire);
        if !starts.is_multiple_of(2) {
            return None;
        }
        let found = count(self.own_threads());
        (self.thread_starts.load(Ordering::Acquire) == starts).then_some(found)
    }
}
