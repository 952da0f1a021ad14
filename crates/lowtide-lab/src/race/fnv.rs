//! A checksum over a load's reads.

use std::hash::Hasher;

/// FNV-1a by words of up to eight bytes: costs the runs next to nothing.
pub struct Fnv(pub u64);

impl Fnv {
    pub const START: u64 = 0xcbf2_9ce4_8422_2325;

    pub fn new() -> Fnv {
        Fnv(Fnv::START)
    }

    pub fn add(&mut self, word: &[u8]) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        self.0 = (self.0 ^ u64::from_le_bytes(bytes)).wrapping_mul(0x0000_0100_0000_01b3);
        // The multiplication moves nothing down.
        self.0 ^= self.0 >> 29;
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.chunks(8).for_each(|word| self.add(word));
    }
}
