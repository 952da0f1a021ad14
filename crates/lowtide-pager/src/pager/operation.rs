//! Who may change page-map words and the store, and when: in an operation, or with the space lock alone. How operations are
//! stopped.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use lowtide_core::store::Store;

use super::Pager;
use crate::fault::patience::Patience;
use crate::mappings::space::Exclusive;

/// The right to change words and the store; see [`Pager::enter`]. What the pager does in an operation are methods of this type.
pub struct Operation<'a>(&'a Pager);

impl Operation<'_> {
    /// The store.
    pub fn store(&self) -> &Store {
        &self.0.store
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
        // SeqCst: pairs with the look in `pause`. What the operation has done comes before what is done while there are none.
        self.0.operations.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What gives the right to change words and the store: an operation, or the space lock alone (events, and the moment of a
/// fork).
pub(crate) trait MayChange {}
impl MayChange for Operation<'_> {}
impl MayChange for Exclusive<'_> {}

impl Pager {
    /// Begins an operation that changes words or the store, unless the program is forking.
    pub fn enter(&self) -> Option<Operation<'_>> {
        // SeqCst, of both: pairs with the two in `pause`. Either this thread sees that the program forks, or that one sees the
        // operation.
        self.operations.fetch_add(1, Ordering::SeqCst);
        let operation = Operation(self);
        (!self.forking.load(Ordering::SeqCst)).then_some(operation)
    }

    /// The store, for those who have the right to change it.
    pub(crate) fn store(&self, _right: &impl MayChange) -> &Store {
        &self.store
    }

    /// Stops operations from beginning, and waits for those under way. Monitors go on serving faults, by copying only.
    pub(crate) fn pause(&self) {
        // SeqCst, of both: pairs with the two in `enter`.
        self.forking.store(true, Ordering::SeqCst);
        let mut patience = Patience::new();
        while self.operations.load(Ordering::SeqCst) > 0 {
            if !patience.wait(crate::fault::patience::IN_HAND_SECONDS) {
                (self.host.fatal)(b"an I/O on swap has not ended for ten minutes");
            }
        }
    }

    /// Ends a [`Pager::pause`].
    pub(crate) fn resume(&self) {
        // SeqCst: pairs with the look in `enter`. What was done while there were no operations comes before those that begin.
        self.forking.store(false, Ordering::SeqCst);
    }

    /// Whether operations are stopped.
    pub fn paused(&self) -> bool {
        // SeqCst: pairs with the stores in `pause` and `resume`.
        self.forking.load(Ordering::SeqCst)
    }

    /// A thread of the program moves memory though a fork is under way for which it should have waited: nobody can tell whether
    /// the child's copy of the tables knows of it.
    pub fn moves_during_fork(&self) {
        // SeqCst: pairs with the swap in `has_moved`. Before the call that moves: if that meets the cloning of the memory,
        // whoever reads the fork's event, which comes after the cloning, sees it.
        self.has_moved.store(true, Ordering::SeqCst);
    }

    /// Whether one did since this was last asked.
    pub(crate) fn has_moved(&self) -> bool {
        // SeqCst: pairs with the store in `moves_during_fork`.
        self.has_moved.swap(false, Ordering::SeqCst)
    }

    /// In a forked child: the parent's threads, of which one may just have found that no operation may begin and was about to
    /// take its count back, are not here.
    pub(crate) fn forget_operations(&self) {
        // SeqCst: pairs with `pause`, once the child has more threads.
        self.operations.store(0, Ordering::SeqCst);
    }
}
