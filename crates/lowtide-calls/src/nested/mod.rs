//! Calls whose memory hangs from other memory, or depends on what they are asked for.

pub mod files;
pub mod memory;
pub mod queues;
pub mod sockets;
pub mod threads;
pub mod transfers;

use crate::PAGE;
use crate::part::Pieces;

/// A set of signals, a `struct timespec`.
const SIGNALS: usize = 8;
const TIME: usize = 16;
/// A classic BPF instruction.
const INSTRUCTION: usize = 8;

/// The part of an argument that an `int` has.
const INT: usize = 0xffff_ffff;

fn has(flags: usize, bits: usize) -> bool {
    flags & bits != 0
}

fn filter(p: &mut Pieces<'_>, at: usize) {
    p.bytes(at, 16);
    if let Some([len, instructions]) = p.words(at) {
        p.bytes(instructions, (len & 0xffff) * INSTRUCTION);
    }
}

pub fn perf_event(p: &mut Pieces<'_>) {
    /// Where `attr` has a function's or a file's name.
    const NAME: usize = 56;
    let at = p.arguments[0];
    p.bytes(at, 144);
    if let Some(len) = p.int(at.saturating_add(4)) {
        p.bytes(at, (len as usize).min(PAGE));
    }
    if let Some(name) = p.word(at.saturating_add(NAME)) {
        p.path(name);
    }
}
