//! The table of own ranges, lowtide's memory. It only grows.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags};

use super::keep_from_child;
use super::place::Place;
use super::room;
use crate::lock::{Lock, rank};

/// Most ranges: 32 MiB of address space. A process needs a few dozen; in a chain of forks each
/// leaves some.
const MAX_OWN: usize = 1 << 20;
/// The table's largest part of RLIMIT_AS, above `LEAST_OWN` ranges.
const TABLE_PART: usize = 256;
const LEAST_OWN: usize = 1 << 14;
const OPENED: usize = 1 << 10;

/// All-zero bytes are an empty range.
pub(super) struct OwnRange {
    pub start: AtomicUsize,
    pub end: AtomicUsize,
    programs: AtomicBool,
    /// Unused: it may be mapped again.
    pub retired: AtomicBool,
}

/// The owner of a range's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// lowtide.
    Lowtide,
    /// The program; lowtide reads it and treats it as its own: the C library's variables.
    Program,
}

static OWN: AtomicPtr<OwnRange> = AtomicPtr::new(core::ptr::null_mut());
static OWN_LEN: AtomicUsize = AtomicUsize::new(0);
pub(super) struct Making {
    pub place: Place,
    open: usize,
    /// Ranges with address space in the table; 0: not mapped yet.
    most: usize,
}

impl Making {
    const NOTHING: Making = Making { place: Place::UNKNOWN, open: 0, most: 0 };
}

/// Held from the making of a mapping to its entry in the table.
pub(super) static MAKING: Lock<Making, { rank::MAPPINGS }> = Lock::new(Making::NOTHING);

pub(super) fn table() -> &'static [OwnRange] {
    // Acquire: pairs with the Release in `enter`, after the table was opened.
    let len = OWN_LEN.load(Ordering::Acquire);
    let at = OWN.load(Ordering::Relaxed);
    // SAFETY: open for `len` ranges, whose bytes are zero or stored atomics; never unmapped.
    if len == 0 { &[] } else { unsafe { core::slice::from_raw_parts(at, len) } }
}

/// Begins a new table in a forked child after [`super::keep_from_children`], without the parent's
/// mappings.
///
/// # Safety
/// As [`Lock::reset_after_fork`], and no [`super::Mapping`] of the parent's is used any more.
pub unsafe fn forget_in_child() {
    OWN_LEN.store(0, Ordering::Relaxed);
    OWN.store(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: the caller's.
    unsafe { MAKING.reset_after_fork() };
    *MAKING.lock() = Making::NOTHING;
}

/// Enters memory that was not mapped here (the library's data, the run's segment).
///
/// # Errors
/// `NOMEM` when the table is full.
pub fn own(start: usize, end: usize, whose: Whose) -> Result<(), Errno> {
    enter(&mut MAKING.lock(), start, end, whose)
}

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
        // SAFETY: a still unused part of the table.
        unsafe {
            rustix::mm::mprotect(base.add(i * size).cast(), step, MprotectFlags::READ | MprotectFlags::WRITE)?;
        }
        making.open = i + OPENED;
        if i == 0 {
            let table = base as usize..base as usize + making.most * size;
            enter(making, table.start, table.end, Whose::Lowtide)?;
            return enter(making, start, end, whose);
        }
    }
    // SAFETY: the table is open beyond `i`; zero bytes are a valid range.
    let slot = unsafe { &*OWN.load(Ordering::Relaxed).add(i) };
    slot.start.store(start, Ordering::Relaxed);
    slot.programs.store(whose == Whose::Program, Ordering::Relaxed);
    slot.end.store(end, Ordering::Relaxed);
    // Release: pairs with the Acquire in `table`: a range counts once it is whole.
    OWN_LEN.store(i + 1, Ordering::Release);
    Ok(())
}

/// Calls `f` unless `start .. end` touches own memory; no own mapping is made meanwhile. (Since the
/// caller looked it up, the program may have unmapped it, and lowtide may have mapped something
/// there.)
pub fn unless_own<R>(start: usize, end: usize, f: impl FnOnce() -> R) -> Option<R> {
    let _making = MAKING.lock();
    let mut own = false;
    own_ranges(|s, e, _| own |= s < end && start < e);
    if own { None } else { Some(f()) }
}

/// Waits until every mapping so far is in the table. Call it between reading the process's mappings
/// and looking up own ranges.
pub fn wait_for_makers() {
    drop(MAKING.lock());
}

/// Frees the lock regardless of its holder.
///
/// # Safety
/// As [`Lock::reset_after_fork`].
pub unsafe fn reset_after_fork() {
    // SAFETY: the caller's.
    unsafe { MAKING.reset_after_fork() }
}

/// Own ranges so far. Later ranges have higher numbers.
pub fn own_count() -> usize {
    table().len()
}

/// Calls `f` with each own range (start, end, owner), oldest first.
pub fn own_ranges(f: impl FnMut(usize, usize, Whose)) {
    own_ranges_in(0, usize::MAX, f);
}

/// As [`own_ranges`], for the numbers `first .. end`.
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
