//! Threads and processes: futexes, clones, what is set and asked of them.

use super::{INT, SIGNALS, TIME, filter, has};
use crate::PAGE;
use crate::part::Pieces;

/// `struct futex_waitv`.
const WAITER: usize = 24;

pub fn futex(p: &mut Pieces<'_>) {
    let [word, operation, _, time, other, _] = *p.arguments;
    let operation = operation & 127;
    p.bytes(word, 4);
    // WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2: elsewhere this is a number.
    if [0, 6, 9, 11, 13].contains(&operation) {
        p.bytes(time, TIME);
    }
    if [3, 4, 5, 11, 12].contains(&operation) {
        p.bytes(other, 4);
    }
}

pub fn futex_waiters(p: &mut Pieces<'_>) {
    waiters(p, p.arguments[1]);
    p.bytes(p.arguments[3], TIME);
}

pub fn futex_requeue(p: &mut Pieces<'_>) {
    waiters(p, 2);
}

fn waiters(p: &mut Pieces<'_>, count: usize) {
    // FUTEX_WAITV_MAX.
    let (at, count) = (p.arguments[0], (count as u32 as usize).min(128));
    p.bytes(at, count * WAITER);
    for i in 0..count {
        let Some([_, word]) = p.words(at.saturating_add(i * WAITER)) else { return };
        p.bytes(word, 8);
    }
}

/// A child that shares the memory writes it when it begins, and the kernel clears it when it ends.
fn childs_id(p: &mut Pieces<'_>, flags: usize, at: usize) {
    const CHILD_SETTID: usize = 0x100_0000;
    const CHILD_CLEARTID: usize = 0x20_0000;
    if has(flags, CHILD_SETTID | CHILD_CLEARTID) {
        p.lasting(at, 4);
    }
}

pub fn clone(p: &mut Pieces<'_>) {
    const PIDFD_OR_PARENT_SETTID: usize = 0x1000 | 0x10_0000;
    let [flags, _, parents, childs, ..] = *p.arguments;
    if has(flags, PIDFD_OR_PARENT_SETTID) {
        p.bytes(parents, 4);
    }
    childs_id(p, flags, childs);
}

pub fn clone3(p: &mut Pieces<'_>) {
    let [at, size, ..] = *p.arguments;
    p.bytes(at, size.min(PAGE));
    let Some([flags, pidfd, child, parent]) = p.words(at) else { return };
    p.bytes(pidfd, 4);
    p.bytes(parent, 4);
    childs_id(p, flags, child);
    // CLONE_ARGS_SIZE_VER1.
    if size >= 80
        && let Some([ids, count]) = p.words(at.saturating_add(64))
    {
        p.members(ids, count, 4);
    }
}

/// Frames of handlers go there.
pub fn alternate_stack(p: &mut Pieces<'_>) {
    const DISABLE: usize = 2;
    if let Some([start, flags, len]) = p.words(p.arguments[0])
        && !has(flags, DISABLE)
    {
        p.lasting(start, len);
    }
}

pub fn seccomp(p: &mut Pieces<'_>) {
    match p.arguments[0] & INT {
        0 => {}
        1 => filter(p, p.arguments[2]),
        2 | 3 => p.bytes(p.arguments[2], 8),
        _ => p.guess(),
    }
}

pub fn prctl(p: &mut Pieces<'_>) {
    const SET_VMA: usize = 0x5356_4d41;
    const GET_AUXV: usize = 0x4155_5856;
    let [option, second, third, fourth, fifth, _] = *p.arguments;
    match option & INT {
        // By value.
        1 | 3 | 4 | 6..=8 | 10 | 13 | 14 | 20 | 21 | 23 | 24 | 26..=34 | 36 | 38 | 39 | 41..=58 | 60 | 61 | 63..=78 => {}
        2 | 5 | 9 | 11 | 19 | 25 | 37 => p.bytes(second, 4),
        15 | 16 => p.bytes(second, 16),
        22 => filter(p, third),
        40 => p.bytes(second, 8),
        59 => p.lasting(fifth, 1),
        62 => p.bytes(fifth, 8),
        SET_VMA => p.path(fifth),
        GET_AUXV => p.bytes(second, third),
        // PR_SET_MM.
        35 if second == 12 || second == 14 => {
            p.bytes(third, fourth);
            p.guess();
        }
        35 if second == 15 => p.bytes(third, 4),
        35 => {}
        _ => p.guess(),
    }
}

pub fn arch_prctl(p: &mut Pieces<'_>) {
    match p.arguments[0] & INT {
        0x1001 | 0x1002 | 0x1011 | 0x1012 | 0x1023 | 0x1025 | 0x2001..=0x2003 | 0x4002 | 0x4004 | 0x5001..=0x5004 => {}
        0x1003 | 0x1004 | 0x1021 | 0x1022 | 0x1024 | 0x4001 | 0x4003 | 0x5005 => p.bytes(p.arguments[1], 8),
        _ => p.guess(),
    }
}

pub fn ptrace(p: &mut Pieces<'_>) {
    let [request, _, addr, data, ..] = *p.arguments;
    match request {
        0 | 4..=9 | 16 | 17 | 24 | 31..=33 | 0x4200 | 0x4206..=0x4208 => {}
        1..=3 | 0x4201 => p.bytes(data, 8),
        12 | 13 => p.bytes(data, 27 * 8),
        14 | 15 => p.bytes(data, 512),
        0x4202 | 0x4203 => p.bytes(data, 128),
        0x4204 | 0x4205 => p.vector(data, 1),
        0x420a | 0x420b => p.bytes(data, SIGNALS),
        0x420e => p.bytes(data, addr),
        _ => p.guess(),
    }
}

/// `struct robust_list_head` and its members: each is a pointer to the next, and at a fixed
/// distance has a word that says who holds the mutex.
pub fn robust_list(p: &mut Pieces<'_>) {
    /// ROBUST_LIST_LIMIT.
    const MOST: usize = 2048;
    /// Of a pointer: the mutex is one with priority inheritance.
    const INHERITS: usize = 1;
    let head = p.arguments[0];
    p.bytes(head, 24);
    let Some([first, distance, pending]) = p.words(head) else { return };
    let mut member = first & !INHERITS;
    for _ in 0..MOST {
        if member == head || member == 0 {
            break;
        }
        p.bytes(member, 8);
        p.bytes(member.wrapping_add(distance), 4);
        let Some(next) = p.word(member) else { break };
        member = next & !INHERITS;
    }
    if pending & !INHERITS != 0 {
        p.bytes((pending & !INHERITS).wrapping_add(distance), 4);
    }
}
