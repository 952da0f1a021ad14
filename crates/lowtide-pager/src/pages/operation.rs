//! Operations, the right to change words and the store beside the exclusive space lock, and
//! stopping them.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use lowtide_core::store::Store;

use crate::pager::Pager;
use crate::pages::patience::Patience;
use crate::pages::space::Exclusive;

/// The right to change words and the store: [`Pager::enter`].
pub struct Operation<'a>(&'a Pager);

impl Operation<'_> {
    /// The store.
    pub fn store(&self) -> &Store {
        &self.0.pages.store
    }
}

impl Deref for Operation<'_> {
    type Target = Pager;
    fn deref(&self) -> &Pager {
        self.0
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        // SeqCst: pairs with the load in `pause`, after the operation.
        self.0.pages.operations.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An operation, or the exclusive space lock (events, forks).
pub(crate) trait MayChange {}
impl MayChange for Operation<'_> {}
impl MayChange for Exclusive<'_> {}

impl Pager {
    /// Begins an operation, except during a fork.
    pub fn enter(&self) -> Option<Operation<'_>> {
        // SeqCst, both: pairs with the two in `pause`. One of the threads sees the other.
        self.pages.operations.fetch_add(1, Ordering::SeqCst);
        let operation = Operation(self);
        (!self.forks.forking.load(Ordering::SeqCst)).then_some(operation)
    }

    pub(crate) fn store(&self, _right: &impl MayChange) -> &Store {
        &self.pages.store
    }

    /// Stops operations and waits for them. Handlers go on, by copying only.
    pub(crate) fn pause(&self) {
        // SeqCst, both: pairs with the two in `enter`.
        self.forks.forking.store(true, Ordering::SeqCst);
        let mut patience = Patience::new();
        while self.pages.operations.load(Ordering::SeqCst) > 0 {
            if !patience.wait(crate::pages::patience::IN_HAND_SECONDS) {
                (self.host.fatal)(b"an I/O on swap has not ended for ten minutes");
            }
        }
    }

    /// Ends a [`Pager::pause`].
    pub(crate) fn resume(&self) {
        // SeqCst: pairs with the load in `enter`, after the pause.
        self.forks.forking.store(false, Ordering::SeqCst);
    }

    /// Whether operations are stopped.
    pub fn paused(&self) -> bool {
        // SeqCst: pairs with the stores in `pause` and `resume`.
        self.forks.forking.load(Ordering::SeqCst)
    }

    /// In a forked child: a refused parent thread may not have taken its count back.
    pub(crate) fn forget_operations(&self) {
        // SeqCst: pairs with `pause`, in later threads.
        self.pages.operations.store(0, Ordering::SeqCst);
    }
}
