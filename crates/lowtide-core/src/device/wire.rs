//! The protocol of pages on a server (`remote.rs`) between a process and `lowtide run`: one request
//! and its answer at a time on a stream socket, in native byte order.
//!
//! A request is a [`Head`], [`Run`]s, and, for a write, the length of each object (16 bits) and the
//! objects. Its answer is the bytes of objects that follow (32 bits), each run's result (32 bits: 0
//! or an errno), and, for a read, each object's length (0 in failed runs) and the objects.
//!
//! [`Head::decode`] and [`Run::decode`] check limits, because neither side trusts the other.

use super::bounce::BUFFER_PAGES;
use crate::vm::PAGE_SIZE;

/// Most runs of a request.
pub const MAX_RUNS: usize = 32;
/// Most pages of a request with objects; `lowtide run`'s memory for them counts as the run's.
pub const MAX_PAGES: usize = BUFFER_PAGES / 2;
/// Most slots of a request without objects.
const MAX_SLOTS: u32 = 1 << 16;

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Keeps objects under slots.
    Write,
    /// Fetches objects.
    Read,
    /// Fetches only the first of two copies, after wrong data.
    ReadFirst,
    /// The same for the second copy.
    ReadSecond,
    /// Reports the first copy wrong and the other right. No objects come back.
    WrongFirst,
    /// The same for the second copy.
    WrongSecond,
    /// Drops slots.
    Discard,
}

impl Op {
    /// Whether objects come back.
    pub fn fetches(self) -> bool {
        matches!(self, Op::Read | Op::ReadFirst | Op::ReadSecond)
    }
}

/// The start of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The operation.
    pub op: Op,
    /// Runs that follow.
    pub runs: usize,
    /// Slots of all runs.
    pub pages: usize,
    /// Bytes of objects that follow.
    pub bytes: usize,
}

impl Head {
    /// Encoded bytes.
    pub const LEN: usize = 12;

    /// As it is sent.
    pub fn encode(self) -> [u8; Head::LEN] {
        let op = match self.op {
            Op::Write => 1u16,
            Op::Read => 2,
            Op::Discard => 3,
            Op::ReadSecond => 4,
            Op::ReadFirst => 5,
            Op::WrongFirst => 6,
            Op::WrongSecond => 7,
        };
        let mut bytes = [0; Head::LEN];
        bytes[..2].copy_from_slice(&op.to_ne_bytes());
        bytes[2..4].copy_from_slice(&(self.runs as u16).to_ne_bytes());
        bytes[4..8].copy_from_slice(&(self.pages as u32).to_ne_bytes());
        bytes[8..].copy_from_slice(&(self.bytes as u32).to_ne_bytes());
        bytes
    }

    /// `None`: invalid.
    pub fn decode(bytes: &[u8; Head::LEN]) -> Option<Head> {
        let [o0, o1, r0, r1, p0, p1, p2, p3, b0, b1, b2, b3] = *bytes;
        let op = match u16::from_ne_bytes([o0, o1]) {
            1 => Op::Write,
            2 => Op::Read,
            3 => Op::Discard,
            4 => Op::ReadSecond,
            5 => Op::ReadFirst,
            6 => Op::WrongFirst,
            7 => Op::WrongSecond,
            _ => return None,
        };
        let runs = usize::from(u16::from_ne_bytes([r0, r1]));
        let (pages, bytes) = (u32::from_ne_bytes([p0, p1, p2, p3]), u32::from_ne_bytes([b0, b1, b2, b3]) as usize);
        let (most, most_bytes) = match op {
            Op::Write => (MAX_PAGES as u32, MAX_PAGES * PAGE_SIZE),
            Op::Discard => (MAX_SLOTS, 0),
            Op::Read | Op::ReadFirst | Op::ReadSecond | Op::WrongFirst | Op::WrongSecond => (MAX_PAGES as u32, 0),
        };
        let fits = (1..=MAX_RUNS).contains(&runs) && pages <= most && bytes <= most_bytes;
        fits.then_some(Head { op, runs, pages: pages as usize, bytes })
    }

    /// Bytes from here to the end of the request.
    pub fn rest(self) -> usize {
        let lengths = if self.op == Op::Write { self.pages * 2 } else { 0 };
        self.runs * Run::LEN + lengths + self.bytes
    }
}

/// Consecutive slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first one.
    pub slot: u64,
    /// How many.
    pub pages: u32,
}

impl Run {
    /// Encoded bytes.
    pub const LEN: usize = 12;

    /// As it is sent.
    pub fn encode(self) -> [u8; Run::LEN] {
        let mut bytes = [0; Run::LEN];
        bytes[..8].copy_from_slice(&self.slot.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.pages.to_ne_bytes());
        bytes
    }

    /// `None`: there are no such slots.
    pub fn decode(bytes: &[u8; Run::LEN]) -> Option<Run> {
        let [slot @ .., a, b, c, d] = *bytes;
        let (slot, pages) = (u64::from_ne_bytes(slot), u32::from_ne_bytes([a, b, c, d]));
        slot.checked_add(u64::from(pages)).filter(|end| *end <= crate::slot::MAX_SLOTS)?;
        Some(Run { slot, pages })
    }
}

/// The start of a connection, answered like a request with one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The device: an unguessable number, known to its process and descendants.
    pub token: u64,
    /// The device must exist. Otherwise it is made.
    pub again: bool,
}

impl Hello {
    /// Encoded bytes.
    pub const LEN: usize = 12;

    /// As it is sent.
    pub fn encode(self) -> [u8; Hello::LEN] {
        let mut bytes = [0; Hello::LEN];
        bytes[..8].copy_from_slice(&self.token.to_ne_bytes());
        bytes[8..].copy_from_slice(&u32::from(self.again).to_ne_bytes());
        bytes
    }

    /// What was sent.
    pub fn decode(bytes: &[u8; Hello::LEN]) -> Hello {
        let [token @ .., a, b, c, d] = *bytes;
        Hello { token: u64::from_ne_bytes(token), again: u32::from_ne_bytes([a, b, c, d]) != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_comes_and_nonsense_is_refused() {
        let without_objects =
            [Op::Read, Op::ReadFirst, Op::ReadSecond, Op::WrongFirst, Op::WrongSecond, Op::Discard].map(|op| (op, 0));
        for (op, bytes) in without_objects.into_iter().chain([(Op::Write, 300)]) {
            let head = Head { op, runs: 2, pages: 5, bytes };
            assert_eq!(Head::decode(&head.encode()), Some(head));
            assert_eq!(op.fetches(), matches!(op, Op::Read | Op::ReadFirst | Op::ReadSecond));
        }
        let good = Head { op: Op::Write, runs: 1, pages: 1, bytes: 4096 };
        assert_eq!(good.rest(), 12 + 2 + 4096);
        for bad in [
            Head { runs: 0, ..good },
            Head { runs: MAX_RUNS + 1, ..good },
            Head { pages: MAX_PAGES + 1, ..good },
            Head { bytes: MAX_PAGES * PAGE_SIZE + 1, ..good },
            Head { op: Op::Read, ..good },
        ] {
            assert_eq!(Head::decode(&bad.encode()), None, "{bad:?}");
        }
        assert_eq!(Head::decode(&[9; Head::LEN]), None);
        let run = Run { slot: 1 << 39, pages: 7 };
        assert_eq!(Run::decode(&run.encode()), Some(run));
        assert_eq!(Run::decode(&Run { slot: u64::MAX, pages: 1 }.encode()), None);
        let hello = Hello { token: u64::MAX - 3, again: true };
        assert_eq!(Hello::decode(&hello.encode()), hello);
    }
}
