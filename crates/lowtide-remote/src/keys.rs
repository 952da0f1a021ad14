//! The names of pages: `lowtide:{RUN:DEVICE:CLUSTER}:SLOT`. RUN is 16 unique hexadecimal digits;
//! DEVICE, CLUSTER (of 512 slots) and SLOT (in its cluster) are hexadecimal. A second copy is
//! `lowtide:{RUN:DEVICE:CLUSTER:NUMBER}:SLOT` (`copies.rs`).
//!
//! In a cluster of servers the text in braces decides a key's node ([`hash_slot`]): neighbours are
//! together, a request mostly goes to one node, and a run's pages spread over all nodes.

use std::io::Write;

use lowtide_core::slot::CLUSTER_SLOTS;
use rustix::io::Errno;

use crate::relay;

/// The prefix of all pages.
pub const PAGES: &str = "lowtide:{";
/// The list of runs that have, or had, keys.
pub const RUNS: &str = "lowtide:{runs}";
/// Candidates for a run's second lease.
const OTHERS: u8 = 8;
/// Hash slots of a cluster of servers.
pub const HASH_SLOTS: u16 = 16384;

/// The name of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunName(pub u64);

/// A run's entry in [`RUNS`], with its lease beside [`RunName::lease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The run.
    pub run: RunName,
    /// The other lease.
    pub other: Other,
}

/// The second lease of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    /// None.
    None,
    /// This one of [`RunName::other_leases`].
    Numbered(u8),
    /// Any or none of these: the run's entry was lost.
    Unknown,
}

impl Listed {
    /// The entry's text: `RUN`, `RUN:NUMBER` or `RUN:?`.
    pub fn text(self) -> String {
        let run = self.run.text();
        match self.other {
            Other::None => run,
            Other::Numbered(number) => format!("{run}:{number:x}"),
            Other::Unknown => format!("{run}:?"),
        }
    }

    /// Reads [`Listed::text`].
    pub fn parse(text: &str) -> Option<Listed> {
        let (run, other) = match text.split_once(':') {
            None => (text, Other::None),
            Some((run, "?")) => (run, Other::Unknown),
            Some((run, number)) => (run, Other::Numbered(u8::from_str_radix(number, 16).ok().filter(|n| *n < OTHERS)?)),
        };
        Some(Listed { run: RunName::parse(run)?, other })
    }

    /// All possible entries of a run.
    pub fn all(run: RunName) -> impl Iterator<Item = Listed> {
        let others = [Other::None, Other::Unknown].into_iter().chain((0..OTHERS).map(Other::Numbered));
        others.map(move |other| Listed { run, other })
    }

    /// Its possible leases: without any, the run is gone.
    pub fn leases(self) -> Vec<String> {
        let others = self.run.other_leases().into_iter().zip(0..);
        let is_its = |(_, number): &(String, u8)| match self.other {
            Other::None => false,
            Other::Numbered(its) => *number == its,
            Other::Unknown => true,
        };
        std::iter::once(self.run.lease()).chain(others.filter(is_its).map(|(lease, _)| lease)).collect()
    }
}

impl RunName {
    /// A random name.
    ///
    /// # Errors
    /// Those of getrandom.
    pub fn new() -> Result<RunName, Errno> {
        relay::random().map(RunName)
    }

    /// Reads [`RunName::text`].
    pub fn parse(text: &str) -> Option<RunName> {
        let is_name = text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        u64::from_str_radix(text, 16).ok().filter(|_| is_name).map(RunName)
    }

    /// The run of a page's key.
    pub fn of_key(key: &[u8]) -> Option<RunName> {
        let name = key.strip_prefix(PAGES.as_bytes())?.split(|byte| *byte == b':').next()?;
        RunName::parse(std::str::from_utf8(name).ok()?)
    }

    /// Its text in keys.
    pub fn text(self) -> String {
        format!("{:016x}", self.0)
    }

    /// The key that exists as long as the run. [`RUNS`] has the same slot: losing the node loses
    /// both, so a live run never seems dead.
    pub fn lease(self) -> String {
        format!("{RUNS}:{}", self.text())
    }

    /// Candidates for a second lease on another node, for runs with two copies.
    pub fn other_leases(self) -> [String; OTHERS as usize] {
        std::array::from_fn(|i| format!("lowtide:{{runs:{i}}}:{}", self.text()))
    }

    /// The prefix of the run's pages.
    pub fn prefix(self) -> String {
        format!("{PAGES}{}:", self.text())
    }

    /// The prefix of a device's pages.
    pub fn device(self, device: u64) -> String {
        format!("{}{device:x}:", self.prefix())
    }
}

/// Replaces `key` by the key of a slot.
pub fn slot(key: &mut Vec<u8>, device: &str, slot: u64) {
    put(key, device, slot, None);
}

/// The same for its second copy with this number.
pub fn second(key: &mut Vec<u8>, device: &str, slot: u64, number: u8) {
    put(key, device, slot, Some(number));
}

fn put(key: &mut Vec<u8>, device: &str, slot: u64, number: Option<u8>) {
    key.clear();
    key.extend_from_slice(device.as_bytes());
    let slots = CLUSTER_SLOTS as u64;
    let _ = write!(key, "{:x}", slot / slots);
    if let Some(number) = number {
        let _ = write!(key, ":{number:x}");
    }
    let _ = write!(key, "}}:{:x}", slot % slots);
}

/// A key's hash slot: the CRC16 (XMODEM) of the text between its first braces, or of all of it.
pub fn hash_slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').map(|close| &rest[..close])
    });
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    crc % HASH_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let run = RunName(0xab);
        assert_eq!((run.text().as_str(), run.lease().as_str()), ("00000000000000ab", "lowtide:{runs}:00000000000000ab"));
        let mut key = b"before".to_vec();
        slot(&mut key, &run.device(17), 512 * 10 + 255);
        assert_eq!(key, b"lowtide:{00000000000000ab:11:a}:ff");
        second(&mut key, &run.device(17), 512 * 10 + 255, 31);
        assert_eq!(key, b"lowtide:{00000000000000ab:11:a:1f}:ff");
        assert_eq!((RunName::of_key(&key), RunName::of_key(RUNS.as_bytes())), (Some(run), None));
        assert_eq!(RunName::parse(&run.text()), Some(run));
        for text in ["", "ab", "00000000000000AB", "+0000000000000ab", "00000000000000ab0"] {
            assert_eq!(RunName::parse(text), None, "{text}");
        }
        assert_eq!(hash_slot(run.lease().as_bytes()), hash_slot(RUNS.as_bytes()));
        let all: Vec<Listed> = Listed::all(run).collect();
        assert!(all.len() == 10 && all.iter().all(|listed| Listed::parse(&listed.text()) == Some(*listed)), "{all:?}");
        assert_eq!(all.iter().map(|listed| listed.leases().len()).collect::<Vec<_>>(), [1, 9, 2, 2, 2, 2, 2, 2, 2, 2]);
        let third = Listed { run, other: Other::Numbered(3) };
        assert_eq!((third.text().as_str(), &third.leases()[1]), ("00000000000000ab:3", &run.other_leases()[3]));
        for text in ["", "ab:3", "00000000000000ab:", "00000000000000ab:8", "00000000000000ab:3:3"] {
            assert_eq!(Listed::parse(text), None, "{text}");
        }
    }

    #[test]
    fn hash_slots() {
        assert_eq!(hash_slot(b"123456789"), 12739);
        assert_eq!(hash_slot(b"foo"), 12182);
        assert_eq!(hash_slot(b"{foo}.bar"), 12182);
        assert_eq!(hash_slot(b"x{foo}{bar}"), 12182);
        assert_eq!(hash_slot(b"{}foo"), hash_slot(b"{}foo"));
        assert_ne!(hash_slot(b"{}foo"), hash_slot(b"foo"));
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        let device = RunName(5).device(1);
        slot(&mut a, &device, 512);
        slot(&mut b, &device, 1023);
        slot(&mut c, &device, 1024);
        assert_eq!(hash_slot(&a), hash_slot(&b), "neighbours are together");
        assert_ne!(hash_slot(&a), hash_slot(&c), "and clusters apart");
    }
}
