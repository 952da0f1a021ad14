//! Which instance an address belongs to.

use lowtide_core::lock::Lock;

use crate::addresses::Addresses;
use crate::instance::Instance;
use crate::signals;

/// Whose the regions of this process are.
static INSTANCES: Addresses<&'static Instance> = Addresses::new();
/// Held by the thread that changes [`INSTANCES`].
static CHANGING: Lock<()> = Lock::new(());

/// Whose an address is.
pub fn instances() -> &'static Addresses<&'static Instance> {
    &INSTANCES
}

/// The memory `start .. end` is this instance's from now on.
pub fn enter(start: usize, end: usize, instance: &'static Instance) {
    let _blocked = signals::block();
    let _changing = CHANGING.lock();
    // SAFETY: the lock is held.
    unsafe { INSTANCES.insert(start, end, instance) }
}

/// The memory that begins at `start` is nobody's any more.
pub fn leave(start: usize) {
    let _blocked = signals::block();
    let _changing = CHANGING.lock();
    // SAFETY: the lock is held.
    unsafe { INSTANCES.remove(start) }
}

/// In a forked child: it has none of its parent's regions.
///
/// # Safety
/// There is one thread.
pub unsafe fn forget_in_child() {
    // SAFETY: handed on to the caller.
    unsafe {
        CHANGING.reset_after_fork();
        INSTANCES.forget_in_child();
    }
}
