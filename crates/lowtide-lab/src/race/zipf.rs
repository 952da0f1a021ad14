//! Zipf-distributed numbers: the k-th most frequent comes in proportion to 1 / k^0.99, as in the
//! cache benchmark YCSB.

const THETA: f64 = 0.99;
/// Factor from rank to number, so that frequent ones are no neighbours. A prime larger than any
/// count: no two ranks share a number.
const SCATTER: usize = 1_000_000_007;

/// A distribution over `0..count`, by the method of Gray et al., "Quickly generating billion-record
/// synthetic databases".
#[derive(Debug, Clone, Copy)]
pub struct Zipf {
    count: usize,
    alpha: f64,
    eta: f64,
    zeta: f64,
}

impl Zipf {
    /// For at least two numbers.
    pub fn new(count: usize) -> Zipf {
        let zeta = (1..=count).map(|k| (k as f64).powf(-THETA)).sum::<f64>();
        let two = 1.0 + 0.5f64.powf(THETA);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - two / zeta);
        Zipf { count, alpha: 1.0 / (1.0 - THETA), eta, zeta }
    }

    pub fn next(&self, random: &mut fastrand::Rng) -> usize {
        self.rank(random.f64()) * SCATTER % self.count
    }

    /// The rank, from 0, below which the share `u` of all draws lies.
    fn rank(&self, u: f64) -> usize {
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let rank = self.count as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as usize).min(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_ones_are_as_frequent_as_they_should_be() {
        let (zipf, draws) = (Zipf::new(1000), 200_000);
        let mut random = fastrand::Rng::with_seed(3);
        let mut seen = vec![0; 1000];
        (0..draws).for_each(|_| seen[zipf.next(&mut random)] += 1);
        let share = |rank: usize| f64::from(seen[rank * SCATTER % 1000]) / f64::from(draws) * zipf.zeta;
        assert!((share(0) - 1.0).abs() < 0.03 && (share(1) - 0.5).abs() < 0.05, "{} {}", share(0), share(1));
        assert!(seen.iter().filter(|n| **n > 0).count() > 950, "the rare ones come too");
    }
}
