//! The base of `addresses.rs`; `tests/addresses_model.rs` replaces it by a model checker's.

pub use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
pub use std::thread::yield_now;

/// In the model: detects use after free.
pub struct Life;

impl Life {
    pub fn new() -> Life {
        Life
    }

    pub fn goes_on(&self) {}

    pub fn ends(&self) {}
}

/// A public function, const except in the model.
macro_rules! constant {
    ($(#[$doc:meta])* fn $($rest:tt)*) => { $(#[$doc])* pub const fn $($rest)* };
}
pub(crate) use constant;
