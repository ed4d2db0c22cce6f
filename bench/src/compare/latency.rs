//! Percentiles of a latency histogram.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Percentiles of one measurement, in us.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Latency {
    pub(super) count: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Latency {
    /// From values in ns.
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self { count: histogram.len(), p50_us: us(0.5), p99_us: us(0.99) }
    }
}
