//! The account of lowtide's own memory.

use core::fmt;

/// Counts memory of lowtide's own: before it is written to, and after the kernel has taken it back.
///
/// Called with lowtide's innermost locks held: an implementation takes no lock and does not
/// allocate.
pub trait Ledger: fmt::Debug + Send + Sync {
    /// Adds `bytes`, which may be negative.
    fn add(&self, bytes: isize);
}

/// Counts nothing.
#[derive(Debug)]
pub struct Uncounted;

impl Ledger for Uncounted {
    fn add(&self, _bytes: isize) {}
}
