//! What `addresses.rs` is made of; in its model (`tests/addresses_model.rs`) it is made of a model checker's.

pub use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
pub use std::thread::yield_now;

/// In the model: whether something is still there when it is used.
pub struct Life;

impl Life {
    /// It is there.
    pub fn new() -> Life {
        Life
    }

    /// It is used.
    pub fn goes_on(&self) {}

    /// It is about to be freed: nobody may use it any more.
    pub fn ends(&self) {}
}

/// A public function that is constant, unless in the model.
macro_rules! constant {
    ($(#[$doc:meta])* fn $($rest:tt)*) => { $(#[$doc])* pub const fn $($rest)* };
}
pub(crate) use constant;
