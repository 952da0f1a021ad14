//! What the thread with the turn (`gate.rs`) changes.

use core::sync::atomic::{AtomicUsize, Ordering};

use lowtide_pager::mappings::Changes;
use lowtide_sys::Range;

static RANGES: [[AtomicUsize; 2]; 2] = [const { [const { AtomicUsize::new(0) }; 2] }; 2];
static LEN: AtomicUsize = AtomicUsize::new(0);
/// What calls that may enlarge a mapping in place cover afterwards: the last ones.
static GROWN: [[AtomicUsize; 2]; LAST] = [const { [const { AtomicUsize::new(0) }; 2] }; LAST];
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// Made between the read of an event and a look at it.
const LAST: usize = 16;

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

/// Before a call that may enlarge a mapping in place to `range`, in turn. Returns its number.
pub fn may_grow(range: Range) -> usize {
    let number = NEXT.fetch_add(1, Ordering::SeqCst) % LAST;
    let at = &GROWN[number];
    // SeqCst: pairs with the loads in `may_have_grown`, whose thread has seen the larger mapping.
    at[1].store(0, Ordering::SeqCst);
    at[0].store(range.start, Ordering::SeqCst);
    at[1].store(range.end, Ordering::SeqCst);
    number
}

/// After the call of that number, which was refused, or has moved the mapping.
pub fn has_not_grown(number: &usize) {
    GROWN[*number][1].store(0, Ordering::SeqCst);
}

/// See [`lowtide_pager::pager::Host::may_have_grown`].
pub fn may_have_grown(range: Range) -> bool {
    GROWN.iter().any(|at| {
        let [start, end] = at.each_ref().map(|word| word.load(Ordering::SeqCst));
        Range { start, end }.meets(range)
    })
}

/// See [`lowtide_pager::pager::Host::turn`]. Unchanged until the event has been read and applied.
pub fn changed() -> Changes {
    let [from, to] =
        RANGES.each_ref().map(|at| Range { start: at[0].load(Ordering::SeqCst), end: at[1].load(Ordering::SeqCst) });
    Changes { from, to, len: LEN.load(Ordering::SeqCst) }
}
