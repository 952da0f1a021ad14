//! Loom's atomics, with sequential consistency where it decides something.
//!
//! Loom takes a sequentially consistent access for an acquire-release one, and so reports what can't happen. It does know
//! sequentially consistent fences: one after each such read-modify-write and one before each such load forbid that a thread reads a
//! value older than what it wrote before. An access that isn't sequentially consistent gets no fence: a missing ordering is found.

use core::ops::Deref;
use loom::sync::atomic as inner;

pub use loom::sync::atomic::*;

/// An atomic of loom's, with fences.
#[derive(Debug, Default)]
pub struct Fenced<A>(A);

/// As loom's.
pub type AtomicU32 = Fenced<inner::AtomicU32>;
/// As loom's.
pub type AtomicPtr<T> = Fenced<inner::AtomicPtr<T>>;

fn fence_if_seq_cst(order: Ordering) {
    if order == Ordering::SeqCst {
        fence(Ordering::SeqCst);
    }
}

impl<A> Deref for Fenced<A> {
    type Target = A;
    fn deref(&self) -> &A {
        &self.0
    }
}

impl AtomicU32 {
    /// A new atomic.
    pub fn new(value: u32) -> Self {
        Fenced(inner::AtomicU32::new(value))
    }

    /// Loads.
    pub fn load(&self, order: Ordering) -> u32 {
        fence_if_seq_cst(order);
        self.0.load(order)
    }

    /// Adds and returns the value before.
    pub fn fetch_add(&self, n: u32, order: Ordering) -> u32 {
        let before = self.0.fetch_add(n, order);
        fence_if_seq_cst(order);
        before
    }
}

impl<T> AtomicPtr<T> {
    /// A new atomic.
    pub fn new(value: *mut T) -> Self {
        Fenced(inner::AtomicPtr::new(value))
    }

    /// Loads.
    pub fn load(&self, order: Ordering) -> *mut T {
        fence_if_seq_cst(order);
        self.0.load(order)
    }

    /// Stores and returns the value before.
    pub fn swap(&self, value: *mut T, order: Ordering) -> *mut T {
        let before = self.0.swap(value, order);
        fence_if_seq_cst(order);
        before
    }
}
