//! The ranges that guards of one region keep in memory.

use lowtide_sys::Range;

/// They may overlap.
#[derive(Debug, Default)]
pub struct Pins(Vec<Range>);

impl Pins {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn overlap(&self, range: Range) -> bool {
        self.0.iter().any(|pin| pin.start < range.end && range.start < pin.end)
    }

    pub fn add(&mut self, range: Range) {
        self.0.push(range);
    }

    /// Removes one such range; calls `free` for each part that no other guard keeps.
    pub fn remove(&mut self, range: Range, mut free: impl FnMut(Range)) {
        let Some(i) = self.0.iter().position(|other| *other == range) else { return };
        self.0.swap_remove(i);
        let mut others: Vec<Range> =
            self.0.iter().copied().filter(|other| other.start < range.end && range.start < other.end).collect();
        others.sort_by_key(|other| other.start);
        let mut at = range.start;
        for other in others {
            if at < other.start {
                free(Range { start: at, end: other.start });
            }
            at = at.max(other.end);
        }
        if at < range.end {
            free(Range { start: at, end: range.end });
        }
    }

    /// Returns the bytes, counted once for each guard.
    pub fn drain_all(&mut self) -> u64 {
        self.0.drain(..).map(bytes).sum()
    }
}

pub fn bytes(range: Range) -> u64 {
    (range.end - range.start) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_guard_keeps_is_not_freed() {
        let range = |start, end| Range { start, end };
        let mut pins = Pins::default();
        for r in [range(0, 10), range(2, 4), range(2, 4), range(6, 12)] {
            pins.add(r);
        }
        let mut freed = |r| {
            let mut parts = Vec::new();
            pins.remove(r, |part| parts.push((part.start, part.end)));
            parts
        };
        assert_eq!(freed(range(0, 10)), [(0, 2), (4, 6)]);
        assert_eq!(freed(range(2, 4)), []);
        assert_eq!(freed(range(2, 4)), [(2, 4)]);
        assert_eq!(freed(range(2, 4)), [], "there is none any more");
        assert_eq!(freed(range(6, 12)), [(6, 12)]);
        assert!(pins.is_empty());
    }
}
