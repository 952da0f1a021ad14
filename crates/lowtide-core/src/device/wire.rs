//! What a process of a run and `lowtide run` say to each other about pages on a server (`remote.rs`): over a connected stream
//! socket, one request and its answer at a time. Numbers are the machine's own.
//!
//! A request is a [`Head`], then [`Run`]s, then, of a write, the length of each object (16 bits) and the objects, one behind
//! the other. Its answer is the number of bytes of objects that follow (32 bits), how each run ended (32 bits: 0 or the number
//! of an error), and, of a read, the length of each object and the objects; those of a run that failed have length 0.
//!
//! Neither side believes the other's numbers: [`Head::decode`] and [`Run::decode`] know the limits.

use super::bounce::BUFFER_PAGES;
use crate::vm::PAGE_SIZE;

/// Most runs of a request.
pub const MAX_RUNS: usize = 32;
/// Most pages of a request that carries objects: `lowtide run` has memory for some requests, which counts as the run's.
pub const MAX_PAGES: usize = BUFFER_PAGES / 2;
/// Most slots of a request without objects.
const MAX_SLOTS: u32 = 1 << 16;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Objects are to be kept under slots.
    Write,
    /// Objects are to be fetched.
    Read,
    /// Where there are two copies, this one is to be fetched, and no other: what came is not what was written.
    ReadFirst,
    /// The same.
    ReadSecond,
    /// This copy is not what was written, and the other one is: the user is to know. Nothing comes back.
    WrongFirst,
    /// The same.
    WrongSecond,
    /// What is kept under slots is not wanted any more.
    Discard,
}

impl Op {
    /// Whether objects come back.
    pub fn fetches(self) -> bool {
        matches!(self, Op::Read | Op::ReadFirst | Op::ReadSecond)
    }
}

/// How a request begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What is asked.
    pub op: Op,
    /// Runs that follow.
    pub runs: usize,
    /// Slots of all of them.
    pub pages: usize,
    /// Bytes of objects that follow.
    pub bytes: usize,
}

impl Head {
    /// Bytes.
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

    /// `None`: nobody sends that.
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

    /// Bytes that follow it, up to the end of the request.
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
    /// Bytes.
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

/// How a connection begins: whose pages it is about. It is answered like a request with one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The device: a number that nobody can guess. Who knows it is the process that made it up, or descends from that one.
    pub token: u64,
    /// The device exists: it is an error if it does not. Else it is made.
    pub again: bool,
}

impl Hello {
    /// Bytes.
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
