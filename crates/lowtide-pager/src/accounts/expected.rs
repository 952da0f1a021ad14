//! The range that a measurement should find.
//!
//! Pages that come or go during a measurement would seem uncounted, now or next time: a page or
//! two, a thousand times a second, always in one direction while faults exceed evictions. Hence a
//! range.

/// In bytes.
#[derive(Debug, Default)]
pub struct Expected {
    least: u64,
    most: u64,
    /// Counted during it; may appear in the next one.
    came: u64,
    went: u64,
}

impl Expected {
    /// Changes counted `before` and `after` a measurement.
    pub fn measured(&mut self, before: u64, after: u64) {
        *self = Expected {
            least: before.min(after).saturating_sub(self.went),
            most: before.max(after).saturating_add(self.came),
            came: after.saturating_sub(before),
            went: before.saturating_sub(after),
        };
    }

    /// Uncounted bytes of `total`; negative: gone.
    pub fn uncounted(&self, total: u64) -> i64 {
        (total as i64).wrapping_sub(total.clamp(self.least, self.most) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = lowtide_core::vm::PAGE_SIZE as u64;

    #[derive(Default)]
    struct Process {
        is: u64,
        found: u64,
        counted: i64,
    }

    impl Process {
        fn pages(&mut self, pages: i64) {
            let bytes = pages * PAGE as i64;
            self.is = self.is.checked_add_signed(bytes).unwrap();
            self.counted += bytes;
        }

        /// `these` come before the count is read, `those` after.
        fn measure(&mut self, expected: &mut Expected, these: i64, those: i64) -> i64 {
            let before = self.found.checked_add_signed(self.counted).unwrap();
            self.pages(these);
            let total = self.is;
            self.pages(those);
            expected.measured(before, self.found.checked_add_signed(self.counted).unwrap());
            (self.found, self.counted) = (total, 0);
            expected.uncounted(total)
        }
    }

    #[test]
    fn what_comes_and_goes_while_it_is_measured_is_counted() {
        let (mut process, mut expected) = (Process { is: 1 << 30, found: 1 << 30, counted: 0 }, Expected::default());
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            process.pages(random.i64(-100..=100));
            let some = random.i64(-40..=40);
            let (these, those) = if random.bool() { (some, 0) } else { (0, some) };
            assert_eq!(process.measure(&mut expected, these, those), 0);
        }
    }

    #[test]
    fn what_nobody_counted_is_found() {
        let (mut process, mut expected) = (Process { is: 1 << 30, found: 1 << 30, counted: 0 }, Expected::default());
        process.is += 300 * PAGE;
        assert_eq!(process.measure(&mut expected, 0, 0), 300 * PAGE as i64);
        assert_eq!(process.measure(&mut expected, 0, 7), 0);
        process.is -= 20 * PAGE;
        assert_eq!(process.measure(&mut expected, 0, 0), -13 * PAGE as i64, "seven of them may have come before");
    }
}
