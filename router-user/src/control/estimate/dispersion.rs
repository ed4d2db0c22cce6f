//! Burstiness of arrivals: the index of dispersion of their counts. Pure.
//!
//! The variance is estimated from three neighbouring windows at a time: the product of two
//! successive differences has minus the variance as its mean, whatever the rate. Deviations from an
//! estimate of the rate would do for a constant rate only: while such an estimate lags behind,
//! every step of demand would count as a burst.

use std::time::Duration;

/// Length of the counted windows. Clients notice an overload of an engine that lasts this long; the
/// batch absorbs a shorter one.
pub(crate) const BUCKET: Duration = Duration::from_secs(10);
/// Memory of the estimate, in windows: ten minutes. On half an hour of a trace with an index of 72
/// the estimate stays between 40 and 78.
const MEMORY_WINDOWS: f64 = 60.0;
/// Weight of the prior, in windows: the estimate starts as if it had seen this many windows without
/// bursts.
const PRIOR_WINDOWS: f64 = 20.0;
/// Largest contribution of one window, as a multiple of the current estimate: it bounds the effect
/// of one wrong report.
const CONTRIBUTION_MAX: f64 = 16.0;
/// Largest index: beyond it arrivals are batches, and headroom does not help.
const INDEX_MAX: f64 = 500.0;

/// Variance of counts divided by their mean: 1 for independent arrivals, more for bursts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispersion {
    index: f64,
    seen: f64,
    /// Counts of the last two windows, the last one first.
    before: [Option<f64>; 2],
}

impl Default for Dispersion {
    fn default() -> Self {
        Self { index: 1.0, seen: PRIOR_WINDOWS, before: [None; 2] }
    }
}

impl Dispersion {
    /// Takes the count of one [`BUCKET`], which follows the last one. `expected` is about the mean
    /// of such counts.
    pub(crate) fn observe(&mut self, count: f64, expected: f64) {
        if let [Some(last), Some(before_last)] = self.before {
            let most = CONTRIBUTION_MAX * self.index.max(1.0);
            let found = -(count - last) * (last - before_last) / expected.max(1.0);
            self.seen += 1.0;
            let gain = 1.0 / self.seen.min(MEMORY_WINDOWS);
            self.index += gain * (found.clamp(-most, most) - self.index);
        }
        self.before = [Some(count), self.before[0]];
    }

    /// Marks a gap: the next window does not follow the last one.
    pub(crate) fn interrupt(&mut self) {
        self.before = [None; 2];
    }

    /// The index, at least 1: a stream that looks steadier than chance does so by chance.
    pub(crate) fn index(self) -> f64 {
        self.index.clamp(1.0, INDEX_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Counts in one window: bursts of `size` requests, their number by chance, `mean` requests in
    /// all.
    fn counts(mean: f64, size: f64, windows: usize) -> Vec<f64> {
        let mut rng = Rng::new(7);
        // Knuth's count of a Poisson variable: how many uniform numbers their product survives.
        let floor = (-mean / size).exp();
        let mut events = || {
            let mut product = rng.unit();
            let mut events = 0.0;
            while product > floor {
                product *= rng.unit();
                events += 1.0;
            }
            events
        };
        (0..windows).map(|_| events() * size).collect()
    }

    fn found(mean: f64, size: f64) -> f64 {
        let mut dispersion = Dispersion::default();
        counts(mean, size, 600).into_iter().for_each(|count| dispersion.observe(count, mean));
        dispersion.index()
    }

    #[test]
    fn the_index_of_bursts_is_their_size() {
        for (size, low, high) in [(1.0, 1.0, 1.6), (4.0, 2.5, 6.0), (70.0, 45.0, 110.0)] {
            let index = found(100.0, size);
            assert!(index > low - 1e-9 && index < high, "{index} for bursts of {size}");
        }
    }

    #[test]
    fn a_step_of_demand_is_no_burst() {
        for (before, after) in [(0.0, 320.0), (10.0, 1_000.0), (1_000.0, 10.0), (250.0, 500.0)] {
            let mut dispersion = Dispersion::default();
            counts(before, 1.0, 60).into_iter().for_each(|count| dispersion.observe(count, before));
            // An estimate of the rate lags behind it for a while.
            for (nth, count) in counts(after, 1.0, 30).into_iter().enumerate() {
                let lag = (-(nth as f64) / 3.0).exp();
                dispersion.observe(count, after + lag * (before - after));
                assert!(dispersion.index() < 2.0, "{} after {nth} windows of {after}", dispersion.index());
            }
        }
    }

    #[test]
    fn one_window_that_is_wrong_says_little_and_is_forgotten() {
        let mut dispersion = Dispersion::default();
        for count in counts(100.0, 1.0, 100) {
            dispersion.observe(count, 100.0);
        }
        dispersion.observe(1e12, 100.0);
        assert!(dispersion.index() < 1.8, "{}", dispersion.index());
        for count in counts(100.0, 1.0, 120) {
            dispersion.observe(count, 100.0);
        }
        assert!(dispersion.index() < 1.5, "{}", dispersion.index());
    }
}
