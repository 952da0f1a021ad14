//! Messages and options of sockets.

use super::{INSTRUCTION, INT, filter};
use crate::part::Pieces;

/// `struct msghdr`, `struct mmsghdr`.
const MESSAGE: usize = 56;
const MESSAGE_OF_SEVERAL: usize = 64;

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
