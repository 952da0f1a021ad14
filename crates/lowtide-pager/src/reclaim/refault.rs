//! What is remembered of a page beside where it is: how often it was asked back soon after it had left. Guesses, which cost
//! time when they are wrong and nothing else: marks are read and written without any lock.
//!
//! As a rule there are no accessed bits for a pager in user space (where there are, `victims.rs`). That a page is hot is seen
//! when it is missed: it is asked for while it still waits in staging, or was evicted so recently that few others have been
//! since (the refault distance of Linux's `workingset.c`). Each such time it stays for longer, as S3-FIFO and CLOCK-Pro do; once
//! it comes back late, it is a page like any other.

/// One byte of a page. Its top two bits are the refault class; the other six are, while the page is in memory, the rounds that
/// it is still spared, and while it is out, the epoch in which it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark(u8);

/// Rounds of the clock hand that a page is spared, by class: how often in a row it came back soon.
const ROUNDS: [u8; 4] = [0, 2, 8, 30];
/// A page has come back soon if it was out for this many epochs at most. An epoch is the time in which a 16th of the limit is
/// evicted (`Pager::epoch`).
const SOON: u8 = 1;
const CLASS_SHIFT: u32 = 6;
const REST: u8 = (1 << CLASS_SHIFT) - 1;
const _: () = assert!(ROUNDS[3] <= REST);

impl Mark {
    /// The mark that a byte encodes.
    pub const fn from_bits(bits: u8) -> Mark {
        Mark(bits)
    }

    /// As a byte.
    pub const fn bits(self) -> u8 {
        self.0
    }

    const fn class(self) -> u8 {
        self.0 >> CLASS_SHIFT
    }

    /// Of a page in memory that the hand has reached: what remains of its rounds; None: it goes.
    pub const fn spared(self) -> Option<Mark> {
        if self.0 & REST == 0 { None } else { Some(Mark(self.0 - 1)) }
    }

    /// Of a page that leaves in this epoch.
    pub const fn leaves(self, epoch: u8) -> Mark {
        Mark(self.class() << CLASS_SHIFT | epoch & REST)
    }

    /// How many epochs ago a page left that is out.
    pub const fn age(self, epoch: u8) -> u8 {
        (epoch & REST).wrapping_sub(self.0 & REST) & REST
    }

    /// Of a page that was missed `age` epochs after it had left, and is in memory again: a page that comes back late is one
    /// like any other.
    pub fn came_back(self, age: u8) -> Mark {
        if age <= SOON { self.came_back_soon() } else { Mark::default() }
    }

    /// Of a page that was missed soon after it had left, and is in memory again.
    pub fn came_back_soon(self) -> Mark {
        let class = (self.class() + 1).min(ROUNDS.len() as u8 - 1);
        Mark(class << CLASS_SHIFT | ROUNDS[class as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_soon_stays_longer_each_time() {
        let mut mark = Mark::default();
        assert_eq!(mark.spared(), None, "nothing is known of it");
        for rounds in [2, 8, 30, 30] {
            mark = mark.leaves(62).came_back_soon();
            for _ in 0..rounds {
                mark = mark.spared().unwrap();
            }
            assert_eq!(mark.spared(), None);
        }
        assert_eq!(Mark::from_bits(mark.leaves(62).bits()).age(62 + 5), 5, "over the end of the count");
        let twice = Mark::default().leaves(0).came_back_soon().spared().and_then(Mark::spared).unwrap();
        assert_eq!(twice.spared(), None, "forgotten");
        assert_eq!(Mark::default().came_back(SOON).spared(), Mark::default().came_back_soon().spared());
        assert_eq!(twice.came_back(SOON + 1), Mark::default(), "late");
    }
}
