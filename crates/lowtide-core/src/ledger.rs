//! The account of the memory that lowtide holds for itself: who keeps it is told when some comes or goes.

use core::fmt;

/// Is told of memory that lowtide holds for itself, as it comes and goes: before its bytes are written to, and once the kernel
/// has taken them back.
///
/// Called with lowtide's innermost locks held: an implementation takes no lock and does not allocate.
pub trait Ledger: fmt::Debug + Send + Sync {
    /// `bytes` more are held (negative: fewer).
    fn add(&self, bytes: isize);
}

/// Nobody keeps count.
#[derive(Debug)]
pub struct Uncounted;

impl Ledger for Uncounted {
    fn add(&self, _bytes: isize) {}
}
