//! What each system call of x86-64 Linux reads and writes of its caller's memory.
//!
//! A userfaultfd without privilege serves user-mode faults only: a system call on a missing page
//! fails with EFAULT, and some lose data by that (a datagram, a descriptor, a child's status). So
//! whoever makes a call there first brings in all that [`each_piece`] names, and holds it until the
//! call returns.
//!
//! The sources are the kernel's headers and manual pages; `tests/kernel.rs` makes the calls with
//! everything else missing.
#![no_std]

mod ioctl;
mod nested;
mod part;
mod scan;
mod table;
mod without_memory;

/// The size of a page in bytes.
const PAGE: usize = 4096;

/// The arguments of a call: rdi, rsi, rdx, r10, r8, r9.
pub type Arguments = [usize; 6];

/// Bytes of the caller's memory, not all of which need be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The address of the first.
    pub start: usize,
    /// How many.
    pub len: usize,
    /// The kernel uses it after the call, too: until another call says otherwise, or the thread
    /// ends.
    pub lasts: bool,
}

/// How the pieces of a call were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// By the table.
    Listed,
    /// By all words that could be pointers: the table lacks this call, or what it was asked for.
    Guessed,
}

/// The caller's memory, read as the caller would read it.
pub trait Memory {
    /// Fills `into` from `at`. False: not all of it is readable.
    fn read(&self, at: usize, into: &mut [u8]) -> bool;
}

/// Names what the kernel may read or write during the call; some pieces may overlap, or never be
/// used. Another thread may change what they were read from until the call is made.
pub fn each_piece(number: usize, arguments: &Arguments, memory: &dyn Memory, found: &mut dyn FnMut(Piece)) -> Known {
    let Some(parts) = table::parts(number) else {
        scan::each_piece(arguments, memory, found);
        return Known::Guessed;
    };
    let mut pieces = part::Pieces { arguments, memory, found, lasts: false, known: Known::Listed };
    for part in parts {
        pieces.part(part);
    }
    pieces.known
}

/// What the kernel reads and writes when a thread ends or executes another program: its list of
/// robust mutexes, the head of which `get_robust_list` tells.
pub fn each_robust_piece(head: usize, memory: &dyn Memory, found: &mut dyn FnMut(Piece)) {
    nested::threads::robust_list(&mut part::Pieces {
        arguments: &[head, 0, 0, 0, 0, 0],
        memory,
        found,
        lasts: false,
        known: Known::Listed,
    });
}

#[cfg(test)]
mod tests;
