//! What a measurement should find, by all that was counted since the one before: what it finds beyond that came without being
//! counted.
//!
//! Pages come and go while it is measured, before the kernel's count is read or after it. Either would look like memory that
//! nobody counted, now or at the next measurement: a page or two each time, a thousand times a second, and always in the same
//! direction while more faults are served than pages evicted. So what is expected is a range.

/// What the latest measurement should have found, in bytes.
#[derive(Debug, Default)]
pub struct Expected {
    least: u64,
    most: u64,
    /// What was counted in the course of it: it may be found at the next one.
    came: u64,
    went: u64,
}

impl Expected {
    /// A measurement. `before`, `after`: what was counted just before it began, and just before that is forgotten because it
    /// has ended.
    pub fn measured(&mut self, before: u64, after: u64) {
        *self = Expected {
            least: before.min(after).saturating_sub(self.went),
            most: before.max(after).saturating_add(self.came),
            came: after.saturating_sub(before),
            went: before.saturating_sub(after),
        };
    }

    /// How many bytes nobody has counted of the `total` that was found; negative: so many are gone.
    pub fn uncounted(&self, total: u64) -> i64 {
        (total as i64).wrapping_sub(total.clamp(self.least, self.most) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = lowtide_core::vm::PAGE_SIZE as u64;

    /// Memory as it is, as it was found last, and what was counted since.
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

        /// These come before the kernel's count is read, those after it.
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
