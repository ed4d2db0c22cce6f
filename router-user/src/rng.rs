//! The one source of randomness. Everything random takes an [`Rng`] or a seed from its caller, so
//! that the same seed gives the same run on every machine; [`entropy`] is the one place where a
//! seed comes from outside.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A seed that differs from process to process.
///
/// The standard library seeds its hash maps from the same source, the kernel's entropy.
pub fn entropy() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): one
/// word of state, passes BigCrush. It spreads load and makes ids; it keeps no secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The generator of a seed; [`Rng::stream`] makes several from one.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator whose sequence is independent of the others made from the same seed.
    pub fn stream(seed: u64, stream: u64) -> Self {
        let mut rng = Self::new(seed ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        rng.next_u64();
        rng
    }

    /// Uniform in all of `u64`.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        router_common::slot::mix64(self.state)
    }

    /// Uniform in (0, 1]: never 0, so that its logarithm is finite.
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..bound`. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Time to the next arrival of a Poisson process of `rate_rps` arrivals per second; `rate_rps`
    /// > 0.
    pub fn interval(&mut self, rate_rps: f64) -> Duration {
        Duration::from_secs_f64(-self.unit().ln() / rate_rps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_the_mean_and_the_spread_of_a_poisson_process() {
        let mut rng = Rng::new(7);
        let intervals: Vec<f64> = (0..20_000).map(|_| rng.interval(50.0).as_secs_f64()).collect();
        let mean = intervals.iter().sum::<f64>() / intervals.len() as f64;
        let variance = intervals.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / intervals.len() as f64;
        assert!((mean - 0.02).abs() < 0.0006, "mean {mean}, wanted 0.02");
        assert!((variance.sqrt() - 0.02).abs() < 0.001, "deviation {}, wanted 0.02", variance.sqrt());
    }

    #[test]
    fn below_reaches_every_value_and_streams_differ() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[usize::try_from(rng.below(5)).expect("small")] += 1;
        }
        assert!(seen.iter().all(|&n| n > 140), "{seen:?}");
        assert_ne!(Rng::stream(1, 1).next_u64(), Rng::stream(1, 2).next_u64());
    }
}
