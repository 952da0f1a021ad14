//! What the thread with the turn (`gate.rs`) changes.

use core::sync::atomic::{AtomicUsize, Ordering};

use lowtide_pager::mappings::Changes;
use lowtide_sys::Range;

static RANGES: [[AtomicUsize; 2]; 2] = [const { [const { AtomicUsize::new(0) }; 2] }; 2];
static LEN: AtomicUsize = AtomicUsize::new(0);
/// What the last call that may enlarge a mapping in place covers afterwards.
static GROWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

pub fn set_changed(Changes { from, to, len }: Changes) {
    // SeqCst: pairs with the loads in `changed`. The event comes after these stores, so its reader
    // finds them.
    LEN.store(len, Ordering::SeqCst);
    for (at, range) in RANGES.iter().zip([from, to]) {
        at[1].store(0, Ordering::SeqCst);
        at[0].store(range.start, Ordering::SeqCst);
        at[1].store(range.end, Ordering::SeqCst);
    }
}

/// Before a call that may enlarge a mapping in place to `range`, in turn.
pub fn set_grown(range: Range) {
    // SeqCst: pairs with the loads in `may_have_grown`, whose thread has seen the larger mapping.
    GROWN[1].store(0, Ordering::SeqCst);
    GROWN[0].store(range.start, Ordering::SeqCst);
    GROWN[1].store(range.end, Ordering::SeqCst);
}

/// See [`lowtide_pager::pager::Host::may_have_grown`].
pub fn may_have_grown(range: Range) -> bool {
    let [start, end] = GROWN.each_ref().map(|at| at.load(Ordering::SeqCst));
    Range { start, end }.meets(range)
}

/// See [`lowtide_pager::pager::Host::turn`]. Unchanged until the event has been read and applied.
pub fn changed() -> Changes {
    let [from, to] =
        RANGES.each_ref().map(|at| Range { start: at[0].load(Ordering::SeqCst), end: at[1].load(Ordering::SeqCst) });
    Changes { from, to, len: LEN.load(Ordering::SeqCst) }
}
