//! Outlier detection: failure rate and latency per engine as data planes observe them, which a
//! health probe cannot. Pure.

use std::time::Duration;

use crate::numeric::decay;
use crate::protocol::EngineReport;

/// Time constant of the exponential decay of reported counts.
const TIME_CONSTANT: Duration = Duration::from_secs(60);
/// Smallest decayed number of requests from which an engine is judged: fewer are noise.
const SAMPLES_MIN: f64 = 20.0;
/// Failure fraction above which an engine is an outlier, and below which it no longer is: the
/// distance between them is the hysteresis.
const FAILING_FRAC: f64 = 0.5;
const FAILING_CLEAR_FRAC: f64 = 0.2;
/// Factor on the planned latency above which an engine is an outlier, and below which it no longer
/// is. So large a factor means a faulty engine or a wrong profile.
const SLOW_FACTOR: f64 = 5.0;
const SLOW_CLEAR_FACTOR: f64 = 3.0;
/// Time constant of the running mean of reported multipliers: the ramp of a returning engine takes
/// as long.
const MULTIPLIER_TIME: Duration = Duration::from_secs(10);
/// Smallest decayed number of reports from which that mean counts, and the mean up to which it
/// does: a short ejection at one data plane moves no plan.
const REPORTS_MIN: f64 = 1.5;
const REDUCED_SHARE: f64 = 0.9;

/// Decayed outcomes of the requests to one engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineOutcomes {
    attempts: f64,
    failures: f64,
    answers: f64,
    latency_ms: f64,
    at: Duration,
    is_failing: bool,
    is_slow: bool,
    /// Decayed number of reports with a multiplier, and the sum of those.
    reports: f64,
    multipliers: f64,
}

impl EngineOutcomes {
    /// Takes the report of one data plane. Returns false, and changes nothing, for impossible
    /// numbers.
    pub(crate) fn take(&mut self, now: Duration, report: &EngineReport) -> bool {
        let is_latency = report.latency_ms_sum.is_finite() && report.latency_ms_sum >= 0.0;
        let is_share = report.multiplier.is_none_or(|multiplier| (0.0..=1.0).contains(&multiplier));
        if !is_latency || !is_share || report.failures > report.attempts {
            return false;
        }
        self.fade(now);
        if let Some(multiplier) = report.multiplier {
            self.reports += 1.0;
            self.multipliers += multiplier;
        }
        self.attempts += report.attempts as f64;
        self.failures += report.failures as f64;
        self.answers += report.answers as f64;
        self.latency_ms += report.latency_ms_sum;
        true
    }

    fn fade(&mut self, now: Duration) {
        let left = decay(now.saturating_sub(self.at), TIME_CONSTANT);
        for sum in [&mut self.attempts, &mut self.failures, &mut self.answers, &mut self.latency_ms] {
            *sum *= left;
        }
        let left = decay(now.saturating_sub(self.at), MULTIPLIER_TIME);
        self.reports *= left;
        self.multipliers *= left;
        self.at = now;
    }

    /// Share of its requests that data planes leave to the engine, while it is less than all.
    pub(crate) fn reduced_share(&mut self, now: Duration) -> Option<f64> {
        self.fade(now);
        let share = self.multipliers / self.reports;
        (self.reports >= REPORTS_MIN && share < REDUCED_SHARE).then_some(share)
    }

    /// Failure fraction of the requests, while it makes the engine an outlier.
    pub(crate) fn failing_frac(&mut self, now: Duration) -> Option<f64> {
        self.fade(now);
        let share = if self.attempts > 0.0 { self.failures / self.attempts } else { 0.0 };
        let is_known = self.attempts >= SAMPLES_MIN;
        self.is_failing =
            (is_known && share > FAILING_FRAC) || (self.is_failing && share > FAILING_CLEAR_FRAC && self.attempts >= 1.0);
        self.is_failing.then_some(share)
    }

    /// Mean latency of a request, in ms, while it makes the engine an outlier against `planned_ms`.
    pub(crate) fn slow_ms(&mut self, now: Duration, planned_ms: f64) -> Option<f64> {
        self.fade(now);
        let mean_ms = if self.answers > 0.0 { self.latency_ms / self.answers } else { 0.0 };
        let is_known = self.answers >= SAMPLES_MIN;
        let still = self.is_slow && self.answers >= 1.0 && mean_ms > SLOW_CLEAR_FACTOR * planned_ms;
        self.is_slow = (is_known && mean_ms > SLOW_FACTOR * planned_ms) || still;
        self.is_slow.then_some(mean_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(attempts: u64, failures: u64, latency_ms_sum: f64) -> EngineReport {
        let answers = attempts.saturating_sub(failures);
        EngineReport { engine: "e1".to_owned(), attempts, failures, answers, latency_ms_sum, ..EngineReport::default() }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn many_failures_count_until_they_are_few() {
        let mut outcomes = EngineOutcomes::default();
        assert!(outcomes.take(at(0), &report(10, 10, 0.0)));
        assert_eq!(outcomes.failing_frac(at(0)), None, "too few to tell");
        assert!(outcomes.take(at(1), &report(20, 15, 0.0)));
        assert!(outcomes.failing_frac(at(1)).is_some_and(|share| share > 0.8));
        assert!(outcomes.take(at(20), &report(40, 0, 0.0)));
        assert!(outcomes.failing_frac(at(20)).is_some(), "a third is still many");
        assert!(outcomes.take(at(60), &report(100, 1, 0.0)));
        assert_eq!(outcomes.failing_frac(at(60)), None);
    }

    #[test]
    fn what_data_planes_leave_to_an_engine_is_planned_with_and_a_short_ejection_is_not() {
        let mut outcomes = EngineOutcomes::default();
        let mut share = |at_s, multiplier| {
            assert!(outcomes.take(at(at_s), &EngineReport { multiplier: Some(multiplier), ..report(10, 0, 0.0) }));
            outcomes.reduced_share(at(at_s))
        };
        (0..20).for_each(|tick| assert_eq!(share(2 * tick, 1.0), None));
        assert_eq!((share(40, 0.5), share(42, 1.0)), (None, None));
        assert!((44..60).step_by(2).map(|at_s| share(at_s, 0.0)).last().flatten().is_some_and(|share| share < 0.3));
        assert!(share(60, 1.0).is_some_and(|share| share < 0.5), "not the full share at once");
        assert_eq!((62..100).step_by(2).map(|at_s| share(at_s, 1.0)).last(), Some(None));
        for nonsense in [f64::NAN, -0.1, 1.1] {
            assert!(!outcomes.take(at(101), &EngineReport { multiplier: Some(nonsense), ..report(1, 0, 0.0) }));
        }
    }

    #[test]
    fn an_engine_many_times_slower_than_planned_is_named_and_nonsense_is_not_counted() {
        let mut outcomes = EngineOutcomes::default();
        assert!(outcomes.take(at(0), &report(30, 0, 30.0 * 4_000.0)));
        assert_eq!(outcomes.slow_ms(at(0), 1_000.0), None);
        assert_eq!(outcomes.slow_ms(at(0), 700.0).map(f64::round), Some(4_000.0));
        assert!(outcomes.slow_ms(at(0), 1_000.0).is_some(), "not believed again so soon");
        assert_eq!(outcomes.slow_ms(at(0), 1_500.0), None);
        for (failures, latency) in [(31, 0.0), (0, f64::NAN), (0, -1.0), (0, f64::INFINITY)] {
            assert!(!outcomes.take(at(1), &report(30, failures, latency)));
        }
    }
}
