//! mremap of several mappings (MREMAP_FIXED, same length). Linux 6.17 and later move them one by
//! one, but stop with EFAULT at the first registered one, after earlier ones have moved. So each
//! moves by its own call.

use core::sync::atomic::{AtomicUsize, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::mappings::Changes;
use lowtide_sys::{Range, release};

use crate::hooks::errno::EFAULT;
use crate::hooks::gate::{self, Call};
use crate::hooks::mark::Mark;
use crate::reclaimer::request::{Request, ask};

const SINCE: release::Release = (6, 17, 0);

/// Usually the asker has the turn.
static ANSWER: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

pub fn is_possible(old_len: usize, new_len: usize, flags: usize) -> bool {
    const FIXED: usize = (sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED) as usize;
    let pages = |len: usize| len.div_ceil(PAGE_SIZE);
    pages(old_len) == pages(new_len) && flags & !(sys::MREMAP_DONTUNMAP as usize) == FIXED && release::running() >= SINCE
}

/// (Not inlined: its mark lies below the caller's.)
#[inline(never)]
pub fn mapping(at: usize) -> Option<Range> {
    let mark = Mark::new();
    let _turn = gate::change(&mark, Call::Silent, Changes::NONE);
    ask(Request::Mapping(Range { start: at, end: at + 1 }));
    let [asked, start, end] = ANSWER.each_ref().map(|word| word.load(Ordering::Relaxed));
    (asked == at && start < end && at < end).then_some(Range { start, end })
}

pub fn answer(at: usize, mapping: Range) {
    for (word, value) in ANSWER.iter().zip([at, mapping.start, mapping.end]) {
        word.store(value, Ordering::Relaxed);
    }
}

/// Stops at the first error; returns the last result. None: a single mapping.
pub fn each(from: Range, mut f: impl FnMut(Range) -> isize) -> Option<isize> {
    let mut next = mapping(from.start)?;
    if next.start > from.start || next.end >= from.end {
        return None;
    }
    let mut moved = -EFAULT;
    while next.start < from.end {
        let part = next.within(from);
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
