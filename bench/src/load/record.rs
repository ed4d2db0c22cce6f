//! Results of requests, as histograms and counts.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::client::{Failure, Outcome};

/// Largest recorded latency, in us: an hour.
const MAX_US: u64 = 3_600_000_000;

/// A value is recorded to three significant digits.
const DIGITS: u8 = 3;

/// Latencies of one kind.
#[derive(Debug)]
pub(super) struct Latencies {
    histogram: Histogram<u64>,
}

/// Mean and percentiles, in ms; all null when nothing was seen.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Summary {
    pub count: u64,
    pub mean_ms: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p90_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub max_ms: Option<f64>,
}

impl Default for Latencies {
    fn default() -> Self {
        let mut histogram = Histogram::new_with_bounds(1, MAX_US, DIGITS).expect("the bounds are constants");
        histogram.auto(false);
        Self { histogram }
    }
}

impl Latencies {
    pub(super) fn record(&mut self, value: Duration) {
        self.histogram.saturating_record(u64::try_from(value.as_micros()).unwrap_or(MAX_US).max(1));
    }

    pub(super) fn clear(&mut self) {
        self.histogram.reset();
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
    }

    pub(super) fn summary(&self) -> Summary {
        let count = self.histogram.len();
        let ms = |us: u64| (count > 0).then_some(us as f64 / 1e3);
        let quantile = |q: f64| ms(self.histogram.value_at_quantile(q));
        Summary {
            count,
            mean_ms: (count > 0).then(|| self.histogram.mean() / 1e3),
            p50_ms: quantile(0.5),
            p90_ms: quantile(0.9),
            p99_ms: quantile(0.99),
            max_ms: ms(self.histogram.max()),
        }
    }
}

/// Everything recorded of one target.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) ended: u64,
    pub(super) answered: u64,
    pub(super) reconnects: u64,
    pub(super) engines: BTreeMap<String, u64>,
    pub(super) failures: BTreeMap<Failure, u64>,
    pub(super) lateness: Latencies,
    pub(super) late: u64,
    pub(super) ttft: Latencies,
    pub(super) tbot: Latencies,
    pub(super) total: Latencies,
    late_after: Option<Duration>,
}

impl Record {
    pub(super) fn new(late_after: Duration) -> Self {
        Self { late_after: Some(late_after), ..Self::default() }
    }

    /// A request that was sent `late` after it was due. Latencies of failed requests are not mixed
    /// with those of whole answers.
    pub(super) fn note(&mut self, late: Duration, outcome: &Outcome) {
        self.ended += 1;
        self.lateness.record(late);
        self.late += u64::from(self.late_after.is_some_and(|bound| late > bound));
        self.reconnects += u64::from(outcome.is_reconnected);
        if let Some(engine) = &outcome.engine {
            *self.engines.entry(engine.clone()).or_default() += 1;
        }
        if let Some(failure) = outcome.failure {
            *self.failures.entry(failure).or_default() += 1;
            return;
        }
        self.answered += 1;
        self.total.record(outcome.total);
        if let Some(ttft) = outcome.ttft {
            self.ttft.record(ttft);
        }
        for gap in &outcome.gaps {
            self.tbot.record(*gap);
        }
    }

    /// A request that was never sent.
    pub(super) fn fail(&mut self, failure: Failure) {
        *self.failures.entry(failure).or_default() += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.ended += other.ended;
        self.answered += other.answered;
        self.reconnects += other.reconnects;
        self.late += other.late;
        for (engine, count) in &other.engines {
            *self.engines.entry(engine.clone()).or_default() += count;
        }
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
        self.lateness.merge(&other.lateness);
        self.ttft.merge(&other.ttft);
        self.tbot.merge(&other.tbot);
        self.total.merge(&other.total);
    }

    /// Forgets everything but its settings; keeps the histograms' memory.
    pub(super) fn clear(&mut self) {
        self.ended = 0;
        self.answered = 0;
        self.reconnects = 0;
        self.late = 0;
        self.engines.clear();
        self.failures.clear();
        for latencies in [&mut self.lateness, &mut self.ttft, &mut self.tbot, &mut self.total] {
            latencies.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_late_sends_are_counted_apart_from_latencies() {
        let mut record = Record::new(Duration::from_millis(5));
        let good = Outcome {
            ttft: Some(Duration::from_millis(20)),
            gaps: vec![Duration::from_millis(2); 3],
            total: Duration::from_millis(26),
            engine: Some("e1".to_owned()),
            ..Outcome::default()
        };
        let bad = Outcome { failure: Some(Failure::Status(503)), total: Duration::from_secs(9), ..Outcome::default() };
        record.note(Duration::from_millis(1), &good);
        record.note(Duration::from_millis(6), &bad);
        record.fail(Failure::InFlight);
        let mut sum = Record::new(Duration::from_millis(5));
        sum.merge(&record);
        record.clear();
        assert_eq!((record.ended, record.total.summary().count), (0, 0));
        assert_eq!((sum.ended, sum.answered, sum.late), (2, 1, 1));
        assert_eq!(sum.failures, BTreeMap::from([(Failure::Status(503), 1), (Failure::InFlight, 1)]));
        assert_eq!((sum.ttft.summary().count, sum.tbot.summary().count), (1, 3));
        let p99 = sum.total.summary().p99_ms.expect("one value");
        assert!((p99 - 26.0).abs() < 0.1, "{p99}");
    }
}
