//! Memory and NUMA nodes.

use super::INT;
use crate::PAGE;
use crate::part::{MOST_IN_VECTOR, Pieces};

/// `struct iovec`.
const VECTOR: usize = 16;

pub fn mincore(p: &mut Pieces<'_>) {
    p.bytes(p.arguments[2], p.arguments[1].div_ceil(PAGE));
}

/// MADV_POPULATE_READ and _WRITE touch the memory.
pub fn madvise(p: &mut Pieces<'_>) {
    let [start, len, advice, ..] = *p.arguments;
    if matches!(advice & INT, 22 | 23) {
        p.bytes(start, len);
    }
}

/// A set of NUMA nodes, by number of the arguments that name it and how many bits it has.
fn nodes(p: &mut Pieces<'_>, set: usize, bits: usize) {
    p.bytes(p.arguments[set], p.arguments[bits].div_ceil(64).min(PAGE / 8) * 8);
}

pub fn mbind(p: &mut Pieces<'_>) {
    nodes(p, 3, 4);
}

pub fn mempolicy(p: &mut Pieces<'_>) {
    nodes(p, 1, 2);
}

pub fn migrate_pages(p: &mut Pieces<'_>) {
    nodes(p, 2, 1);
    nodes(p, 3, 1);
}

pub fn move_pages(p: &mut Pieces<'_>) {
    let [_, count, pages, nodes, status, _] = *p.arguments;
    let count = count.min(1 << 24);
    p.bytes(pages, count * 8);
    p.bytes(nodes, count * 4);
    p.bytes(status, count * 4);
}

/// The array alone: what it names is not read.
pub fn process_madvise(p: &mut Pieces<'_>) {
    p.bytes(p.arguments[1], p.arguments[2].min(MOST_IN_VECTOR) * VECTOR);
}
