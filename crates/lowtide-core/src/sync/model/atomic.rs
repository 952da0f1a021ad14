//! Loom's atomics, with sequential consistency where it matters.
//!
//! Loom treats SeqCst accesses as AcqRel, and so reports impossible executions, but it supports
//! SeqCst fences: one after each SeqCst read-modify-write keeps later loads from reading older
//! values. So a missing SeqCst is found on a read-modify-write, not on a load.

use core::ops::Deref;
use loom::sync::atomic as inner;

pub use loom::sync::atomic::*;

/// A loom atomic, with fences.
#[derive(Debug, Default)]
pub struct Fenced<A>(A);

/// Loom's AtomicU32, with fences.
pub type AtomicU32 = Fenced<inner::AtomicU32>;
/// Loom's AtomicU64, with fences.
pub type AtomicU64 = Fenced<inner::AtomicU64>;
/// Loom's AtomicPtr, with fences.
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

    /// Adds and returns the value before.
    pub fn fetch_add(&self, n: u32, order: Ordering) -> u32 {
        let before = self.0.fetch_add(n, order);
        fence_if_seq_cst(order);
        before
    }
}

impl AtomicU64 {
    /// A new atomic.
    pub fn new(value: u64) -> Self {
        Fenced(inner::AtomicU64::new(value))
    }

    /// Compare and exchange.
    pub fn compare_exchange(&self, from: u64, to: u64, order: Ordering, failure: Ordering) -> Result<u64, u64> {
        let result = self.0.compare_exchange(from, to, order, failure);
        fence_if_seq_cst(order);
        result
    }

    /// Sets bits and returns the value before.
    pub fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        let before = self.0.fetch_or(bits, order);
        fence_if_seq_cst(order);
        before
    }
}

impl<T> AtomicPtr<T> {
    /// A new atomic.
    pub fn new(value: *mut T) -> Self {
        Fenced(inner::AtomicPtr::new(value))
    }

    /// Stores and returns the value before.
    pub fn swap(&self, value: *mut T, order: Ordering) -> *mut T {
        let before = self.0.swap(value, order);
        fence_if_seq_cst(order);
        before
    }
}
