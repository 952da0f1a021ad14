//! What the data structures that are model-checked build on: locks, atomics and words to sleep on, or with the feature `loom`
//! or `shuttle` those of the model checker.

#[cfg(not(any(feature = "loom", feature = "shuttle")))]
mod futex;
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
mod real {
    pub use super::futex::Futex;
    pub use crate::lock::{Guard, Lock};
    pub use core::hint::spin_loop;
    pub use core::sync::atomic;

    pub use crate::table::Table as Array;

    /// Lets other threads run, while waiting for one of them.
    pub fn pause() {
        rustix::thread::sched_yield();
    }

    /// As [`pause`], for longer: some tens of microseconds.
    pub fn rest() {
        let time = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 20_000 };
        // Interrupted or not, the caller looks again.
        let _ = rustix::thread::nanosleep(&time);
    }
}
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub use real::*;

#[cfg(any(feature = "loom", feature = "shuttle"))]
mod model;
#[cfg(any(feature = "loom", feature = "shuttle"))]
pub use model::*;
