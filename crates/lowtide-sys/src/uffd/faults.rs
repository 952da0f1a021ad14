//! Injected kernel errors (`make faults`).

use lowtide_core::faults::{self, Fault, Op};
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use super::Progress;

/// Counts a call; returns its fault.
pub fn struck(op: Op) -> Option<Fault> {
    faults::installed()?.next(op)
}

/// The same as an error without effect.
pub(super) fn refused(op: Op) -> Option<Errno> {
    errno(struck(op)?)
}

/// The same for a call on `len` bytes.
pub(super) fn progress(op: Op, len: usize, call: impl FnOnce(usize) -> Progress) -> Progress {
    let Some(fault) = struck(op) else { return call(len) };
    let in_part = |progress: Progress| match progress.done {
        0 => progress,
        done => Progress { done: done.min(PAGE_SIZE), error: Some(Errno::AGAIN) },
    };
    match (fault, errno(fault)) {
        (_, Some(error)) => Progress { done: 0, error: Some(error) },
        (Fault::Page, _) if len > PAGE_SIZE => in_part(call(PAGE_SIZE)),
        (Fault::Under, _) if len > PAGE_SIZE => in_part(call(len)),
        _ => call(len),
    }
}

fn errno(fault: Fault) -> Option<Errno> {
    match fault {
        Fault::Again => Some(Errno::AGAIN),
        Fault::NoMemory => Some(Errno::NOMEM),
        Fault::Busy => Some(Errno::BUSY),
        Fault::Exists => Some(Errno::EXIST),
        Fault::NoEntry => Some(Errno::NOENT),
        _ => None,
    }
}
