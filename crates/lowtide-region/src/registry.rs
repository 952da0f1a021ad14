//! Which house an address belongs to.

use lowtide_core::lock::Lock;

use crate::addresses::Addresses;
use crate::house::House;
use crate::signals;

/// Whose the regions of this process are.
static HOUSES: Addresses<&'static House> = Addresses::new();
/// Held by the thread that changes [`HOUSES`].
static CHANGING: Lock<()> = Lock::new(());

/// Whose an address is.
pub fn houses() -> &'static Addresses<&'static House> {
    &HOUSES
}

/// The memory `start .. end` is this house's from now on.
pub fn enter(start: usize, end: usize, house: &'static House) {
    let _blocked = signals::block();
    let _changing = CHANGING.lock();
    // SAFETY: the lock is held.
    unsafe { HOUSES.insert(start, end, house) }
}

/// The memory that begins at `start` is nobody's any more.
pub fn leave(start: usize) {
    let _blocked = signals::block();
    let _changing = CHANGING.lock();
    // SAFETY: the lock is held.
    unsafe { HOUSES.remove(start) }
}

/// In a forked child: it has none of its parent's regions.
///
/// # Safety
/// There is one thread.
pub unsafe fn forget_in_child() {
    // SAFETY: handed on to the caller.
    unsafe {
        CHANGING.reset_after_fork();
        HOUSES.forget_in_child();
    }
}
