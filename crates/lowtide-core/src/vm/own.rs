//! The table of own ranges: what tells lowtide's memory apart from the program's. It only grows.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags};

use super::keep_from_child;
use super::place::Place;
use super::room;
use crate::lock::{Lock, rank};

/// Most ranges of the table: address space for 32 MiB. What lowtide maps in one process is a few dozen; what a chain of forks
/// leaves behind in its last child is some more for each.
const MAX_OWN: usize = 1 << 20;
/// Of the address space that a process may have (`ulimit -v`) no more than this part, but so many ranges.
const TABLE_PART: usize = 256;
const LEAST_OWN: usize = 1 << 14;
/// Ranges for which the table is opened at a time.
const OPENED: usize = 1 << 10;

/// All-zero bytes are a range that is none.
pub(super) struct OwnRange {
    pub start: AtomicUsize,
    pub end: AtomicUsize,
    /// [`Whose::Program`].
    programs: AtomicBool,
    /// Nobody uses the range: it may be mapped again.
    pub retired: AtomicBool,
}

/// Whose memory a range of the table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// lowtide's: it counts as such.
    Lowtide,
    /// The program's, which lowtide reads and therefore treats as its own: the C library's variables.
    Program,
}

/// The table, once there is a range.
static OWN: AtomicPtr<OwnRange> = AtomicPtr::new(core::ptr::null_mut());
/// How many ranges have a place in it.
static OWN_LEN: AtomicUsize = AtomicUsize::new(0);
/// What whoever makes a mapping needs.
pub(super) struct Making {
    /// Where the next one goes.
    pub place: Place,
    /// How many ranges the table is open for, ...
    open: usize,
    /// ... and how many there is room for; 0: it is not made yet.
    most: usize,
}

impl Making {
    const NOTHING: Making = Making { place: Place::UNKNOWN, open: 0, most: 0 };
}

/// Held from the making of a mapping to its entry in the table.
pub(super) static MAKING: Lock<Making, { rank::MAPPINGS }> = Lock::new(Making::NOTHING);

/// The ranges so far.
pub(super) fn table() -> &'static [OwnRange] {
    // Acquire: pairs with the Release in `enter`, before which the table was there and open so far.
    let len = OWN_LEN.load(Ordering::Acquire);
    let at = OWN.load(Ordering::Relaxed);
    // SAFETY: open for `len` ranges, whose bytes are zero or atomics that were stored; never unmapped.
    if len == 0 { &[] } else { unsafe { core::slice::from_raw_parts(at, len) } }
}

/// In a forked child whose parent had called [`super::keep_from_children`]: none of the mappings is there, and the table begins
/// anew.
///
/// # Safety
/// As [`Lock::reset_after_fork`], and nothing may use a [`super::Mapping`] of the parent's any more.
pub unsafe fn forget_in_child() {
    OWN_LEN.store(0, Ordering::Relaxed);
    OWN.store(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: handed on to the caller.
    unsafe { MAKING.reset_after_fork() };
    *MAKING.lock() = Making::NOTHING;
}

/// Enters `start .. end` into the table of own ranges: for memory that lowtide got in another way (its library's data, the
/// run's segment).
///
/// # Errors
/// `NOMEM` when the table is full.
pub fn own(start: usize, end: usize, whose: Whose) -> Result<(), Errno> {
    enter(&mut MAKING.lock(), start, end, whose)
}

/// Enters a range into the table.
pub(super) fn enter(making: &mut Making, start: usize, end: usize, whose: Whose) -> Result<(), Errno> {
    let i = OWN_LEN.load(Ordering::Relaxed);
    let (size, step) = (size_of::<OwnRange>(), OPENED * size_of::<OwnRange>());
    if i == making.open {
        let mut base = OWN.load(Ordering::Relaxed).cast::<u8>();
        if base.is_null() {
            making.most =
                room::limit().map_or(MAX_OWN, |limit| (limit / TABLE_PART / size).clamp(LEAST_OWN, MAX_OWN) & !(OPENED - 1));
            base = making.place.map(making.most * size, MapFlags::PRIVATE | MapFlags::NORESERVE)?.cast();
            keep_from_child(base.cast(), making.most * size)?;
            OWN.store(base.cast(), Ordering::Relaxed);
        }
        if i + OPENED > making.most {
            return Err(Errno::NOMEM);
        }
        // SAFETY: a part of it that nobody has used yet.
        unsafe {
            rustix::mm::mprotect(base.add(i * size).cast(), step, MprotectFlags::READ | MprotectFlags::WRITE)?;
        }
        making.open = i + OPENED;
        if i == 0 {
            // The table is a range of its own.
            let table = base as usize..base as usize + making.most * size;
            enter(making, table.start, table.end, Whose::Lowtide)?;
            return enter(making, start, end, whose);
        }
    }
    // SAFETY: the table is open for `open` ranges, and `i` is less; its zero bytes are a range.
    let slot = unsafe { &*OWN.load(Ordering::Relaxed).add(i) };
    slot.start.store(start, Ordering::Relaxed);
    slot.programs.store(whose == Whose::Program, Ordering::Relaxed);
    slot.end.store(end, Ordering::Relaxed);
    // Release: pairs with the Acquire in `table`. A range counts once it is whole.
    OWN_LEN.store(i + 1, Ordering::Release);
    Ok(())
}

/// Calls `f` unless `start .. end` touches lowtide's own memory; no mapping of lowtide's own comes to be meanwhile. For what
/// must never happen to own memory: the program may have unmapped a range, and lowtide mapped something there, since the range
/// was looked up.
pub fn unless_own<R>(start: usize, end: usize, f: impl FnOnce() -> R) -> Option<R> {
    let _making = MAKING.lock();
    let mut own = false;
    own_ranges(|s, e, _| own |= s < end && start < e);
    if own { None } else { Some(f()) }
}

/// Waits until every mapping that exists by now is in the table of own ranges. To be called between looking at the process's
/// mappings and asking which of them are lowtide's own.
pub fn wait_for_makers() {
    drop(MAKING.lock());
}

/// Frees the lock whoever holds it.
///
/// # Safety
/// As [`Lock::reset_after_fork`].
pub unsafe fn reset_after_fork() {
    // SAFETY: handed on to the caller.
    unsafe { MAKING.reset_after_fork() }
}

/// How many own ranges there are. Those that come to be later have higher numbers.
pub fn own_count() -> usize {
    table().len()
}

/// Calls `f` with each own range (start, end, whose), in the order in which they were made.
pub fn own_ranges(f: impl FnMut(usize, usize, Whose)) {
    own_ranges_in(0, usize::MAX, f);
}

/// As [`own_ranges`], for the ranges of the numbers `first .. end`, of those that there are.
pub fn own_ranges_in(first: usize, end: usize, mut f: impl FnMut(usize, usize, Whose)) {
    let table = table();
    for slot in &table[first.min(table.len())..end.min(table.len())] {
        let whose = if slot.programs.load(Ordering::Relaxed) { Whose::Program } else { Whose::Lowtide };
        f(slot.start.load(Ordering::Relaxed), slot.end.load(Ordering::Relaxed), whose);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_own_ranges_grows() {
        let before = table().len();
        for i in 0..2 * OPENED {
            own(i + 1, i + 2, Whose::Program).unwrap();
        }
        assert!(table().len() >= before + 2 * OPENED);
        assert!((0..2 * OPENED).all(|i| table().iter().any(|r| r.start.load(Ordering::Relaxed) == i + 1)));
    }
}
