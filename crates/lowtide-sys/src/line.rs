//! A line of text built without allocation.

const MAX: usize = 320;
const MAX_PATH: usize = 128;

/// A line under construction; excess is cut.
#[derive(Debug)]
pub struct Line {
    bytes: [u8; MAX],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Line::new()
    }
}

impl Line {
    /// An empty line.
    pub const fn new() -> Line {
        Line { bytes: [0; MAX], len: 0 }
    }

    /// Adds text.
    pub fn push(&mut self, text: &[u8]) -> &mut Line {
        let n = text.len().min(MAX - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&text[..n]);
        self.len += n;
        self
    }

    /// Adds a path; of a long one the end, after `...`.
    pub fn path(&mut self, path: &[u8]) -> &mut Line {
        let Some(cut) = path.len().checked_sub(MAX_PATH).filter(|cut| *cut > 0) else { return self.push(path) };
        let tail = &path[cut..];
        // Skip a partial UTF-8 character.
        let inside = tail.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        self.push(b"...").push(&tail[inside..])
    }

    /// Adds a decimal number.
    pub fn number(&mut self, mut n: u64) -> &mut Line {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.push(&digits[at..])
    }

    /// Adds an address.
    pub fn hex(&mut self, n: usize) -> &mut Line {
        let digits = (n.max(1).ilog2() / 4) as usize;
        self.push(b"0x");
        (0..=digits).rev().for_each(|at| _ = self.push(&[b"0123456789abcdef"[n >> (at * 4) & 0xf]]));
        self
    }

    /// The text so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl core::fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        self.push(s.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn numbers_and_overlong_text() {
        let mut line = Line::new();
        line.push(b"offset ").number(0).push(b", ").number(u64::MAX);
        assert_eq!(line.bytes(), b"offset 0, 18446744073709551615");
        line.push(&[b'x'; 1000]);
        assert_eq!(line.bytes().len(), MAX);
    }

    #[test]
    fn of_long_paths_the_end_is_shown() {
        let shown =
            |path: &str| core::str::from_utf8(Line::new().push(b"dir:").path(path.as_bytes()).bytes()).unwrap().to_string();
        let short = "/x".repeat(64);
        assert_eq!(shown(&short), std::format!("dir:{short}"));
        assert_eq!(shown(&std::format!("/long{short}")), std::format!("dir:...{short}"));
        assert_eq!(
            shown(&std::format!("/\u{20ac}{}", "x".repeat(127))),
            std::format!("dir:...{}", "x".repeat(127)),
            "no half characters"
        );
    }
}
