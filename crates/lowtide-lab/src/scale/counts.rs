//! A step's counts, and their transport between processes.

use std::fmt;

use lowtide_core::lock::rank::RANKS;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub instructions: u64,
    /// Of these, locked ones, which own a cache line: each taken lock is one, each atomic sum
    /// another.
    pub locked: u64,
    pub calls: u64,
    /// Bytes of the deepest stack below the caller's.
    pub stack: u64,
    /// Visited places of processes.
    pub places: u64,
    pub taken: [u64; RANKS],
}

const NUMBERS: usize = 5 + RANKS;

impl Counts {
    fn numbers(&self) -> impl Iterator<Item = u64> {
        [self.instructions, self.locked, self.calls, self.stack, self.places].into_iter().chain(self.taken)
    }

    /// Growth since `before`: the largest factor.
    pub fn over(&self, before: &Counts) -> f64 {
        let both = self.numbers().zip(before.numbers());
        both.filter(|(now, _)| *now > 0).map(|(now, before)| now as f64 / before as f64).fold(0.0, f64::max)
    }

    pub(super) fn line(&self) -> String {
        self.numbers().map(|n| n.to_string()).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn of_line(line: &str) -> Option<Counts> {
        let numbers: Vec<u64> = line.split(' ').map_while(|n| n.parse().ok()).collect();
        let &[instructions, locked, calls, stack, places, ref taken @ ..] =
            <&[u64; NUMBERS]>::try_from(numbers.as_slice()).ok()?;
        Some(Counts { instructions, locked, calls, stack, places, taken: *taken })
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instructions {
            0 => f.write_str("not counted"),
            n => write!(f, "{n} / {} / {}", self.locked, self.calls),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_all_of_it() {
        let counts = Counts {
            instructions: 5,
            stack: 3,
            places: 7,
            taken: std::array::from_fn(|rank| rank as u64),
            ..Counts::default()
        };
        assert_eq!(Counts::of_line(&counts.line()), Some(counts));
        for wrong in ["", "1 2 3", &format!("{} 1", counts.line())] {
            assert_eq!(Counts::of_line(wrong), None);
        }
    }

    #[test]
    fn whatever_has_grown_most_counts() {
        let few = Counts { instructions: 1000, locked: 3, calls: 1, stack: 64, places: 0, taken: [1; RANKS] };
        assert_eq!(few.over(&few), 1.0);
        assert_eq!(Counts { calls: 2, ..few }.over(&few), 2.0);
        assert_eq!(Counts { taken: std::array::from_fn(|rank| if rank == 5 { 4 } else { 1 }), ..few }.over(&few), 4.0);
        assert_eq!(Counts { places: 1, ..few }.over(&few), f64::INFINITY);
    }
}
