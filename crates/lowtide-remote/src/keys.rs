//! Under which names pages are kept: `lowtide:RUN:DEVICE:SLOT`, all that a run has under one beginning. RUN is 16 hexadecimal
//! digits that nobody else has, DEVICE and SLOT are hexadecimal numbers.

use std::io::Write;

/// How all names begin.
pub const PREFIX: &str = "lowtide:";
/// The names of the runs that have, or had, keys.
pub const RUNS: &str = "lowtide:runs";

/// The name of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunName(pub u64);

impl RunName {
    /// Reads what [`RunName::text`] wrote.
    pub fn parse(text: &str) -> Option<RunName> {
        let is_name = text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        u64::from_str_radix(text, 16).ok().filter(|_| is_name).map(RunName)
    }

    /// As it stands in keys.
    pub fn text(self) -> String {
        format!("{:016x}", self.0)
    }

    /// The key that is there as long as the run is.
    pub fn lease(self) -> String {
        format!("{PREFIX}{}:lease", self.text())
    }

    /// What all keys of the run begin with.
    pub fn prefix(self) -> String {
        format!("{PREFIX}{}:", self.text())
    }

    /// What the keys of a device of the run begin with.
    pub fn device(self, device: u64) -> String {
        format!("{}{device:x}:", self.prefix())
    }
}

/// Puts the key of a slot into `key`, in place of what was there.
pub fn slot(key: &mut Vec<u8>, device: &str, slot: u64) {
    key.clear();
    key.extend_from_slice(device.as_bytes());
    let _ = write!(key, "{slot:x}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let run = RunName(0xab);
        assert_eq!((run.text().as_str(), run.lease().as_str()), ("00000000000000ab", "lowtide:00000000000000ab:lease"));
        let mut key = b"before".to_vec();
        slot(&mut key, &run.device(17), 255);
        assert_eq!(key, b"lowtide:00000000000000ab:11:ff");
        assert_eq!(RunName::parse(&run.text()), Some(run));
        for text in ["", "ab", "00000000000000AB", "+0000000000000ab", "00000000000000ab0"] {
            assert_eq!(RunName::parse(text), None, "{text}");
        }
    }
}
