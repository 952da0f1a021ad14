//! Calls whose memory hangs from other memory, or depends on what they are asked for.

use crate::part::{MOST_IN_VECTOR, Pieces};
use crate::{Known, PAGE};

/// `struct msghdr`, `struct mmsghdr`, `struct iovec`.
const MESSAGE: usize = 56;
const MESSAGE_OF_SEVERAL: usize = 64;
const VECTOR: usize = 16;
/// A set of signals, a `struct timespec`.
const SIGNALS: usize = 8;
const TIME: usize = 16;
/// `struct iocb`.
const IOCB: usize = 64;
/// `struct futex_waitv`.
const WAITER: usize = 24;
/// A classic BPF instruction.
const INSTRUCTION: usize = 8;

/// The part of an argument that an `int` has.
const INT: usize = 0xffff_ffff;

fn has(flags: usize, bits: usize) -> bool {
    flags & bits != 0
}

pub fn message(p: &mut Pieces<'_>) {
    message_at(p, p.arguments[1], MESSAGE);
}

pub fn messages(p: &mut Pieces<'_>) {
    for i in 0..p.arguments[2] as u32 as usize {
        if !message_at(p, p.arguments[1].saturating_add(i * MESSAGE_OF_SEVERAL), MESSAGE_OF_SEVERAL) {
            return;
        }
    }
}

/// False: nothing can be read there.
fn message_at(p: &mut Pieces<'_>, at: usize, size: usize) -> bool {
    p.bytes(at, size);
    let Some([name, name_len, vector, count, control, control_len]) = p.words(at) else { return false };
    p.members(name, name_len, 1);
    p.vector(vector, count);
    p.bytes(control, control_len);
    true
}

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

fn filter(p: &mut Pieces<'_>, at: usize) {
    p.bytes(at, 16);
    if let Some([len, instructions]) = p.words(at) {
        p.bytes(instructions, (len & 0xffff) * INSTRUCTION);
    }
}

/// Level and option: SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF, PACKET_FANOUT_DATA.
const FILTERS: [(usize, usize); 3] = [(1, 26), (1, 51), (263, 22)];
const RING_MEMORY: (usize, usize) = (283, 4);

fn option_of(p: &Pieces<'_>) -> (usize, usize) {
    (p.arguments[1] & INT, p.arguments[2] & INT)
}

pub fn setsockopt(p: &mut Pieces<'_>) {
    let (option, [_, _, _, value, len, _]) = (option_of(p), *p.arguments);
    p.members(value, len, 1);
    if FILTERS.contains(&option) {
        filter(p, value);
    }
    // XDP_UMEM_REG.
    if option == RING_MEMORY
        && let Some([start, len]) = p.words(value)
    {
        p.lasting(start, len);
    }
    has_pointers(p, option);
}

pub fn getsockopt(p: &mut Pieces<'_>) {
    let (option, [_, _, _, value, len, _]) = (option_of(p), *p.arguments);
    p.result(value, len);
    // SO_GET_FILTER counts instructions.
    if option == FILTERS[0]
        && let Some(count) = p.int(len)
    {
        p.members(value, count as usize, INSTRUCTION);
    }
    has_pointers(p, option);
}

/// Tables of packet filters (IP, IPv6), TCP_ZEROCOPY_RECEIVE and TCP_AO_GET_KEYS,
/// SCTP_SOCKOPT_CONNECTX3, RDS, MPTCP.
fn has_pointers(p: &mut Pieces<'_>, option: (usize, usize)) {
    if matches!(option, (0 | 41, 64..) | (6, 35 | 41) | (132, 111) | (276 | 284, _)) {
        p.guess();
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

pub fn semctl(p: &mut Pieces<'_>) {
    const VERSION_64: usize = 0x100;
    /// SEMMSL's greatest value, two bytes each.
    const ALL: usize = 2 * 65536;
    let at = p.arguments[3];
    match p.arguments[2] & INT & !VERSION_64 {
        1..=3 | 18..=20 => p.bytes(at, 104),
        13 | 17 => p.bytes(at, ALL),
        0 | 11 | 12 | 14..=16 => {}
        _ => p.guess(),
    }
}

pub fn queue_message(p: &mut Pieces<'_>) {
    p.bytes(p.arguments[1], p.arguments[2].saturating_add(8));
}

pub fn mq_notify(p: &mut Pieces<'_>) {
    const BY_THREAD: usize = 2;
    let at = p.arguments[1];
    p.bytes(at, 64);
    if let Some([value, how]) = p.words(at)
        && how >> 32 == BY_THREAD
    {
        p.bytes(value, 32);
    }
}

pub fn mincore(p: &mut Pieces<'_>) {
    p.bytes(p.arguments[2], p.arguments[1].div_ceil(PAGE));
}

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

/// MADV_POPULATE_READ and _WRITE touch the memory.
pub fn madvise(p: &mut Pieces<'_>) {
    let [start, len, advice, ..] = *p.arguments;
    if matches!(advice & INT, 22 | 23) {
        p.bytes(start, len);
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

/// `struct robust_list_head` and its members: each is a pointer to the next, and at a fixed distance
/// has a word that says who holds the mutex.
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
