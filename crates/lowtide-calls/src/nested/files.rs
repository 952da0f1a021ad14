//! Files, mounts, and waiting for descriptors.

use super::{INT, SIGNALS};
use crate::PAGE;
use crate::part::Pieces;

pub fn fd_sets(p: &mut Pieces<'_>) {
    let bits = usize::try_from(p.arguments[0] as u32 as i32).unwrap_or(0);
    for set in 1..=3 {
        p.bytes(p.arguments[set], bits.div_ceil(64) * 8);
    }
}

/// The last argument of pselect6 and io_pgetevents: a set of signals and its length.
pub fn signals_behind(p: &mut Pieces<'_>) {
    p.bytes(p.arguments[5], 16);
    if let Some([signals, _]) = p.words(p.arguments[5]) {
        p.bytes(signals, SIGNALS);
    }
}

pub fn fcntl(p: &mut Pieces<'_>) {
    const LOCKS: [usize; 6] = [5, 6, 7, 36, 37, 38];
    const OWNERS: [usize; 3] = [15, 16, 17];
    const HINTS: [usize; 4] = [1035, 1036, 1037, 1038];
    let (command, at) = (p.arguments[1] & INT, p.arguments[2]);
    if LOCKS.contains(&command) {
        p.bytes(at, 32);
    } else if OWNERS.contains(&command) || HINTS.contains(&command) {
        p.bytes(at, 8);
    } else if !matches!(command, 0..=4 | 8..=11 | 1024..=1034) {
        p.guess();
    }
}

/// `struct file_handle`: its length without these eight bytes, its type, its bytes.
fn handle(p: &mut Pieces<'_>, at: usize) {
    p.bytes(at, 8);
    if let Some(len) = p.int(at) {
        p.bytes(at, 8 + (len as usize).min(PAGE));
    }
}

pub fn name_to_handle_at(p: &mut Pieces<'_>) {
    handle(p, p.arguments[2]);
}

pub fn open_by_handle_at(p: &mut Pieces<'_>) {
    handle(p, p.arguments[1]);
}

/// The kernel reads a page of options, as far as it is mapped.
pub fn mount(p: &mut Pieces<'_>) {
    p.bytes(p.arguments[4], PAGE);
}

pub fn fsconfig(p: &mut Pieces<'_>) {
    match p.arguments[1] & INT {
        1 | 3 | 4 => p.path(p.arguments[3]),
        2 => p.bytes(p.arguments[3], p.arguments[4]),
        0 | 5..=8 => {}
        _ => p.guess(),
    }
}

pub fn xattr_at(p: &mut Pieces<'_>) {
    let [_, _, _, _, at, size] = *p.arguments;
    p.bytes(at, size.min(PAGE));
    if let Some([value, len]) = p.words(at) {
        p.bytes(value, len as u32 as usize);
    }
}

pub fn mounts(p: &mut Pieces<'_>) {
    p.bytes(p.arguments[1], p.arguments[2].saturating_mul(8));
}
