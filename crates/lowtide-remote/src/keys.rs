//! Under which names pages are kept: `lowtide:{RUN:DEVICE:CLUSTER}:SLOT`, all that a run has under one beginning. RUN is 16
//! hexadecimal digits that nobody else has; DEVICE, CLUSTER (of 512 slots) and SLOT (in its cluster) are hexadecimal numbers. A
//! second copy is `lowtide:{RUN:DEVICE:CLUSTER:NUMBER}:SLOT` (`copies.rs`).
//!
//! In a cluster of servers what stands in braces decides which node has a key ([`hash_slot`]): so neighbours are together, one
//! request goes to one node most often, and the pages of a run are spread over all nodes.

use std::io::Write;

use lowtide_core::slot::CLUSTER_SLOTS;

/// How the names of pages begin.
pub const PAGES: &str = "lowtide:{";
/// The names of the runs that have, or had, keys.
pub const RUNS: &str = "lowtide:{runs}";
/// Hash slots of a cluster of servers.
pub const HASH_SLOTS: u16 = 16384;

/// The name of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunName(pub u64);

impl RunName {
    /// Reads what [`RunName::text`] wrote.
    pub fn parse(text: &str) -> Option<RunName> {
        let is_name = text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        u64::from_str_radix(text, 16).ok().filter(|_| is_name).map(RunName)
    }

    /// The run that a page's key belongs to.
    pub fn of_key(key: &[u8]) -> Option<RunName> {
        let name = key.strip_prefix(PAGES.as_bytes())?.split(|byte| *byte == b':').next()?;
        RunName::parse(std::str::from_utf8(name).ok()?)
    }

    /// As it stands in keys.
    pub fn text(self) -> String {
        format!("{:016x}", self.0)
    }

    /// The key that is there as long as the run is. It is where [`RUNS`] is: a node that is lost takes both, so a run that goes
    /// on is not taken for one that is gone.
    pub fn lease(self) -> String {
        format!("{RUNS}:{}", self.text())
    }

    /// The keys of which a run with two copies of its pages has another one, too: one that is on another node.
    pub fn other_leases(self) -> [String; 8] {
        std::array::from_fn(|i| format!("lowtide:{{runs:{i}}}:{}", self.text()))
    }

    /// What all keys of pages of the run begin with.
    pub fn prefix(self) -> String {
        format!("{PAGES}{}:", self.text())
    }

    /// What the keys of a device of the run begin with.
    pub fn device(self, device: u64) -> String {
        format!("{}{device:x}:", self.prefix())
    }
}

/// Puts the key of a slot into `key`, in place of what was there.
pub fn slot(key: &mut Vec<u8>, device: &str, slot: u64) {
    put(key, device, slot, None);
}

/// The same, of its second copy, which has this number.
pub fn second(key: &mut Vec<u8>, device: &str, slot: u64, number: u8) {
    put(key, device, slot, Some(number));
}

fn put(key: &mut Vec<u8>, device: &str, slot: u64, number: Option<u8>) {
    key.clear();
    key.extend_from_slice(device.as_bytes());
    let slots = CLUSTER_SLOTS as u64;
    // Writing into a Vec does not fail.
    let _ = write!(key, "{:x}", slot / slots);
    if let Some(number) = number {
        let _ = write!(key, ":{number:x}");
    }
    let _ = write!(key, "}}:{:x}", slot % slots);
}

/// In which hash slot of a cluster of servers a key is: the CRC16 (XMODEM) of what stands between its first braces, or of all of
/// it.
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
    }

    /// What `CLUSTER KEYSLOT` says.
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
