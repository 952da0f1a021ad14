//! The instance of an address.

use lowtide_core::lock::Lock;

use crate::addresses::Addresses;
use crate::instance::Instance;
use crate::signals;

static INSTANCES: Addresses<&'static Instance> = Addresses::new();
static CHANGING: Lock<()> = Lock::new(());

pub fn instances() -> &'static Addresses<&'static Instance> {
    &INSTANCES
}

pub fn enter(start: usize, end: usize, instance: &'static Instance) {
    let _blocked = signals::block();
    let _changing = CHANGING.lock();
    // SAFETY: the lock is held.
    unsafe { INSTANCES.insert(start, end, instance) }
}

pub fn leave(start: usize) {
    let _blocked = signals::block();
    let _changing = CHANGING.lock();
    // SAFETY: the lock is held.
    unsafe { INSTANCES.remove(start) }
}

/// # Safety
/// There is one thread.
pub unsafe fn forget_in_child() {
    // SAFETY: as the caller promises.
    unsafe {
        CHANGING.reset_after_fork();
        INSTANCES.forget_in_child();
    }
}
