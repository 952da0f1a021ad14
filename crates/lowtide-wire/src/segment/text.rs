//! Lines of text from agents to `lowtide run`.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// States of [`Text::state`].
pub mod text_state {
    /// Empty.
    pub const EMPTY: u32 = 0;
    /// Being written.
    pub const WRITING: u32 = 1;
    /// Complete.
    pub const READY: u32 = 2;
}

/// One line of text from an agent to `lowtide run`.
#[repr(C)]
pub struct Text {
    /// One of [`text_state`].
    pub state: AtomicU32,
    /// Sender.
    pub pid: AtomicU32,
    /// NUL-padded UTF-8 (invalid bytes are replaced on display); atomic against data races.
    pub words: [AtomicU64; 40],
}

impl Text {
    /// Writes `text` (cut at 320 bytes) if the line is empty. False: taken.
    pub fn put(&self, pid: u32, text: &[u8]) -> bool {
        if self.state.compare_exchange(text_state::EMPTY, text_state::WRITING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        for (word, chunk) in self.words.iter().zip(text.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        self.pid.store(pid, Ordering::Relaxed);
        // Release: pairs with the Acquire in `get`.
        self.state.store(text_state::READY, Ordering::Release);
        true
    }

    /// The complete line, padded with NULs.
    pub fn get(&self) -> Option<[u8; 320]> {
        // Acquire: pairs with the Release in `put`.
        if self.state.load(Ordering::Acquire) != text_state::READY {
            return None;
        }
        let mut out = [0; 320];
        for (word, chunk) in self.words.iter().zip(out.chunks_mut(8)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_written_once() {
        let text = Text { state: AtomicU32::new(0), pid: AtomicU32::new(0), words: [const { AtomicU64::new(0) }; 40] };
        assert!(text.get().is_none());
        assert!(text.put(7, b"the disk is gone"));
        assert!(!text.put(8, b"too late"));
        assert!(text.get().unwrap().starts_with(b"the disk is gone\0"));
    }
}
