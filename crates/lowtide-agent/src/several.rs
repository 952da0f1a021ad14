//! mremap of several mappings at once (MREMAP_FIXED, the same length). From Linux 6.17 on the kernel moves them one after the other,
//! but for those that are registered: at the first of these it stops, with EFAULT, and those before it have moved. So each is moved
//! by a call of its own.

use core::sync::atomic::{AtomicUsize, Ordering};

use linux_raw_sys::general as sys;
use lowtide_pager::mappings::Range;
use lowtide_pager::sys::release;

use crate::gate::{self, Call};
use crate::mark::Mark;
use crate::request::{Request, ask};

/// From this Linux on.
const SINCE: release::Release = (6, 17, 0);
const EFAULT: isize = 14;

/// What the reclaimer was asked last, and its answer. Whoever asks has the turn, as a rule.
static ANSWER: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// Whether a call moves whole mappings to a given place.
pub fn is_possible(old_len: usize, new_len: usize, flags: usize) -> bool {
    old_len == new_len && flags == (sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED) as usize && release::running() >= SINCE
}

/// The mapping that there is at an address, or that follows. None: nobody says.
pub fn mapping(at: usize) -> Option<Range> {
    let mark = Mark::new();
    let _turn = gate::change(&mark, Call::Silent, [Range::NONE; 2]);
    ask(Request::Mapping(Range { start: at, end: at + 1 }));
    let [asked, start, end] = ANSWER.each_ref().map(|word| word.load(Ordering::Relaxed));
    (asked == at && start < end && at < end).then_some(Range { start, end })
}

/// By the reclaimer.
pub fn answer(at: usize, mapping: Range) {
    for (word, value) in ANSWER.iter().zip([at, mapping.start, mapping.end]) {
        word.store(value, Ordering::Relaxed);
    }
}

/// Calls `f` with the parts of what is to move, one for each mapping, until one fails; what the last one returned. None: it is a
/// single mapping.
pub fn each(from: Range, mut f: impl FnMut(Range) -> isize) -> Option<isize> {
    let mut next = mapping(from.start)?;
    if next.start > from.start || next.end >= from.end {
        return None;
    }
    let mut moved = -EFAULT;
    while next.start < from.end {
        let part = Range { start: next.start.max(from.start), end: next.end.min(from.end) };
        moved = f(part);
        if moved < 0 {
            break;
        }
        match mapping(part.end) {
            Some(following) if part.end < from.end => next = following,
            _ => break,
        }
    }
    Some(moved)
}
