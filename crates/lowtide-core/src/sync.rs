//! Locks, atomics and futexes for model-checked structures; with the feature `loom` or `shuttle`
//! the model checker's.

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
        // The caller checks again, interrupted or not.
        let _ = rustix::thread::nanosleep(&time);
    }
}
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub use real::*;

#[cfg(any(feature = "loom", feature = "shuttle"))]
mod model;
#[cfg(any(feature = "loom", feature = "shuttle"))]
pub use model::*;
