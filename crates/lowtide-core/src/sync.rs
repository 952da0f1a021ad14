//! What the data structures that are model-checked build on: locks and atomics, or with the feature `loom` or `shuttle` those of
//! the model checker.

#[cfg(not(any(feature = "loom", feature = "shuttle")))]
mod real {
    pub use crate::lock::{Guard, Lock};
    pub use core::hint::spin_loop;
    pub use core::sync::atomic;
}
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub use real::*;

#[cfg(any(feature = "loom", feature = "shuttle"))]
mod model;
#[cfg(any(feature = "loom", feature = "shuttle"))]
pub use model::*;
