//! What keeps the reclaimer from sleeping on: faults have passed the high watermark, or mappings have changed.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::request;

/// The reclaimer sleeps, and faults may wake it.
static ASLEEP: AtomicBool = AtomicBool::new(false);
/// Mappings have changed since the reclaimer last looked at them.
static LOOK_AGAIN: AtomicBool = AtomicBool::new(false);

/// The reclaimer sleeps: in `sleep`, which ends when the bell rings.
pub fn sleep_lightly(sleep: impl FnOnce()) {
    // Release: pairs with the swap in `wake_if_asleep`.
    ASLEEP.store(true, Ordering::Release);
    sleep();
    ASLEEP.store(false, Ordering::Release);
}

/// Wakes the reclaimer if it sleeps: the high watermark was passed.
pub fn wake_if_asleep() {
    // AcqRel: pairs with the Release in `sleep_lightly`.
    if ASLEEP.swap(false, Ordering::AcqRel) {
        request::ring();
    }
}

/// Mappings have changed: there may be some to register.
pub fn look_again() {
    // Release: pairs with the Acquire in `must_look_again`.
    LOOK_AGAIN.store(true, Ordering::Release);
}

/// Whether mappings have changed since [`looked`]. They are there then.
pub fn must_look_again() -> bool {
    // Acquire: pairs with the Release in `look_again`.
    LOOK_AGAIN.load(Ordering::Acquire)
}

/// The reclaimer looks at all mappings from here on.
pub fn looked() {
    LOOK_AGAIN.store(false, Ordering::Release);
}
