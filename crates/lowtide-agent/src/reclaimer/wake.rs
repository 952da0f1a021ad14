//! Wakes the reclaimer: faults have passed the high watermark, or mappings have changed.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::reclaimer::request;

static ASLEEP: AtomicBool = AtomicBool::new(false);
static LOOK_AGAIN: AtomicBool = AtomicBool::new(false);

pub fn sleep_lightly(sleep: impl FnOnce()) {
    // Release: pairs with the swap in `wake_if_asleep`.
    ASLEEP.store(true, Ordering::Release);
    sleep();
    ASLEEP.store(false, Ordering::Release);
}

pub fn wake_if_asleep() {
    // AcqRel: pairs with the Release in `sleep_lightly`.
    if ASLEEP.swap(false, Ordering::AcqRel) {
        request::ring();
    }
}

pub fn look_again() {
    // Release: pairs with the Acquire in `must_look_again`.
    LOOK_AGAIN.store(true, Ordering::Release);
}

pub fn must_look_again() -> bool {
    // Acquire: pairs with the Release in `look_again`.
    LOOK_AGAIN.load(Ordering::Acquire)
}

pub fn looked() {
    LOOK_AGAIN.store(false, Ordering::Release);
}
