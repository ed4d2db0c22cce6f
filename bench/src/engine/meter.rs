//! Present load from arrivals.

use std::time::Duration;

use router_user::numeric::decay;
use tokio::time::Instant;

/// Exponentially weighted arrival rate.
///
/// The weight of an arrival decays with the time constant `window`. The first seconds are corrected
/// for the time before the first arrival, which would otherwise count as idle.
#[derive(Clone, Debug)]
pub(super) struct LoadMeter {
    window: Duration,
    rate: f64,
    last: Option<Instant>,
    first: Option<Instant>,
}

/// Smallest share of the window that a rate is computed over: in less, one arrival looks like a
/// burst.
const MIN_AGE_FRAC: f64 = 0.25;

impl LoadMeter {
    pub(super) fn new(window: Duration) -> Self {
        Self { window, rate: 0.0, last: None, first: None }
    }

    /// Counts one arrival at `now`.
    pub(super) fn record(&mut self, now: Instant) {
        self.rate = self.decayed(now) + 1.0 / self.window.as_secs_f64();
        self.last = Some(now);
        self.first.get_or_insert(now);
    }

    /// Arrivals per second before `now`.
    pub(super) fn rate_rps(&self, now: Instant) -> f64 {
        let age = self.first.map_or(Duration::ZERO, |first| now.saturating_duration_since(first));
        let seen_frac = 1.0 - decay(age.max(self.window.mul_f64(MIN_AGE_FRAC)), self.window);
        self.decayed(now) / seen_frac
    }

    fn decayed(&self, now: Instant) -> f64 {
        let idle = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.rate * decay(idle, self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn the_rate_is_right_early_and_late_and_fades() {
        let start = clock::now();
        let mut meter = LoadMeter::new(Duration::from_secs(2));
        let mut now = start;
        for arrival in 0..1000 {
            now = start + Duration::from_millis(10 * arrival);
            if arrival == 100 || arrival == 900 {
                let rate = meter.rate_rps(now);
                assert!((rate - 100.0).abs() < 3.0, "{rate} requests/s after {arrival} arrivals at 100/s");
            }
            meter.record(now);
        }
        let rate = meter.rate_rps(now + Duration::from_secs(4));
        assert!((rate - 100.0 * (-2.0_f64).exp()).abs() < 1.0, "{rate} after two windows of silence");
    }
}
