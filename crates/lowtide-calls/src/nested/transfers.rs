//! Asynchronous transfers.

use super::{SIGNALS, TIME, has};
use crate::part::Pieces;
use crate::{Known, PAGE};

/// `struct iocb`.
const IOCB: usize = 64;

pub fn io_submit(p: &mut Pieces<'_>) {
    /// PREADV and PWRITEV.
    const BY_VECTOR: [usize; 2] = [7, 8];
    let [_, count, at, ..] = *p.arguments;
    // AIO_MAX_NR is smaller where nobody has raised it.
    let count = count.min(1 << 16);
    p.bytes(at, count * 8);
    for i in 0..count {
        let Some(iocb) = p.word(at.saturating_add(i * 8)) else { return };
        p.bytes(iocb, IOCB);
        let Some([_, _, operation, buffer, bytes]) = p.words(iocb) else { continue };
        if BY_VECTOR.contains(&(operation & 0xffff)) {
            p.vector(buffer, bytes);
        } else {
            p.bytes(buffer, bytes);
        }
    }
}

pub fn io_getevents(p: &mut Pieces<'_>) {
    let [_, _, count, at, time, _] = *p.arguments;
    p.members(at, count, 32);
    p.bytes(time, TIME);
}

pub fn io_uring_enter(p: &mut Pieces<'_>) {
    const EXTENDED: usize = 8;
    let [_, _, _, flags, at, size] = *p.arguments;
    if !has(flags, EXTENDED) {
        p.bytes(at, SIGNALS);
    } else if let Some([signals, _, time]) = p.words(at) {
        p.bytes(at, size.min(PAGE));
        p.bytes(signals, SIGNALS);
        p.bytes(time, TIME);
    }
    // What the queue names is not known here.
    p.known = Known::Guessed;
}

pub fn io_uring_setup(p: &mut Pieces<'_>) {
    /// The rings are the caller's memory.
    const NO_MMAP: u32 = 1 << 14;
    let at = p.arguments[1];
    p.bytes(at, 120);
    if p.int(at.saturating_add(8)).is_some_and(|flags| flags & NO_MMAP != 0) {
        p.guess();
    }
}
