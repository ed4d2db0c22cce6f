//! Histograms of latencies: fixed buckets of plain counters, written by one worker and read by
//! anybody.
//!
//! One observation is a search among 16 bounds and two stores to memory that no other worker
//! writes.

use std::time::Duration;

use super::counter::Counter;

/// Finite bucket bounds of one histogram.
const BOUNDS: usize = 16;

/// Upper bounds of the buckets of one kind of latency, in µs, ascending; a bucket takes its bound
/// itself.
pub(super) type Bounds = [u64; BOUNDS];

/// Time to first token: from a cached prompt on an idle engine (5 ms) to a prefill of 100,000
/// tokens behind a queue (2 min).
pub(super) const TTFT_BOUNDS: Bounds =
    milliseconds([5, 10, 25, 50, 100, 150, 250, 500, 750, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000]);
/// Time between tokens: finest between 5 and 100 ms, where people read along; 1 s and more is a
/// stall.
pub(super) const ITL_BOUNDS: Bounds = milliseconds([1, 2, 5, 8, 10, 15, 20, 25, 30, 40, 50, 75, 100, 250, 1_000, 5_000]);
/// End to end: from a short answer (50 ms) to a long reasoning one (10 min).
pub(super) const E2E_BOUNDS: Bounds = milliseconds([
    50, 100, 250, 500, 1_000, 2_000, 3_000, 5_000, 7_500, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000,
]);

const fn milliseconds(mut bounds: Bounds) -> Bounds {
    let mut at = 0;
    while at < BOUNDS {
        bounds[at] *= 1_000;
        at += 1;
    }
    bounds
}

/// The hot side: what one worker counts of one engine.
#[derive(Debug)]
pub(super) struct Histogram {
    bounds: &'static Bounds,
    /// Observations by bucket, not cumulated; the last bucket has no bound.
    buckets: [Counter; BOUNDS + 1],
    sum_us: Counter,
}

impl Histogram {
    pub(super) fn new(bounds: &'static Bounds) -> Self {
        Self { bounds, buckets: Default::default(), sum_us: Counter::default() }
    }

    /// Counts one latency. Only the owning worker may call this, as with [`Counter::add`].
    #[inline]
    pub(super) fn observe(&self, latency: Duration) {
        let us = latency.as_micros() as u64;
        self.add(us, 1);
        self.sum_us.add(us);
    }

    /// Counts `count` latencies that took `total` together, in equal shares.
    #[inline]
    pub(super) fn observe_shared(&self, total: Duration, count: u64) {
        let us = total.as_micros() as u64;
        if let Some(each) = us.checked_div(count) {
            self.add(each, count);
            self.sum_us.add(us);
        }
    }

    #[inline]
    fn add(&self, us: u64, count: u64) {
        self.buckets[self.bounds.partition_point(|&bound| bound < us)].add(count);
    }
}

/// The times between the events of one stream, as its reads show them.
#[derive(Debug, Default)]
pub(super) struct EventGaps {
    /// When the last event was read.
    last: Option<Duration>,
}

impl EventGaps {
    /// Counts the gaps that `events` close, which one read has brought at `now`: they share the
    /// time since the event before. The first event of a stream closes none.
    #[inline]
    pub(super) fn observe(&mut self, events: u64, now: Duration, gaps: &Histogram) {
        match self.last.replace(now) {
            Some(last) => gaps.observe_shared(now.saturating_sub(last), events),
            None => gaps.observe_shared(Duration::ZERO, events.saturating_sub(1)),
        }
    }
}

/// The read side: one histogram summed over workers.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Latencies {
    /// Upper bound of each bucket in seconds, without the last one, which has none.
    pub bounds_s: Vec<f64>,
    /// Observations in each bucket, not cumulated; one more than bounds.
    pub buckets: Vec<u64>,
    pub sum_s: f64,
}

impl Latencies {
    pub(super) fn sum_of<'h>(histograms: impl Iterator<Item = &'h Histogram>, bounds: &Bounds) -> Self {
        let bounds_s = bounds.iter().map(|&us| us as f64 / 1e6).collect();
        let mut sum = Self { bounds_s, buckets: vec![0; BOUNDS + 1], sum_s: 0.0 };
        for histogram in histograms {
            sum.buckets.iter_mut().zip(&histogram.buckets).for_each(|(sum, bucket)| *sum += bucket.value());
            sum.sum_s += histogram.sum_us.value() as f64 / 1e6;
        }
        sum
    }

    /// How many latencies were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum_ms(&self) -> f64 {
        self.sum_s * 1e3
    }

    /// Mean in ms; `None` before the first.
    pub fn mean_ms(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum_ms() / count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(histogram: &Histogram) -> Latencies {
        Latencies::sum_of(std::iter::once(histogram), histogram.bounds)
    }

    #[test]
    fn bounds_rise_and_a_bucket_takes_its_bound_itself() {
        for bounds in [&TTFT_BOUNDS, &ITL_BOUNDS, &E2E_BOUNDS] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
            for (bucket, &bound) in bounds.iter().enumerate() {
                for (us, wanted) in [(bound - 1, bucket), (bound, bucket), (bound + 1, bucket + 1)] {
                    let histogram = Histogram::new(bounds);
                    histogram.observe(Duration::from_micros(us));
                    let buckets = read(&histogram).buckets;
                    assert_eq!(buckets.iter().position(|&n| n == 1), Some(wanted), "{us} us in {bounds:?}");
                }
            }
        }
    }

    #[test]
    fn no_latency_is_lost_not_even_one_of_years() {
        let histogram = Histogram::new(&E2E_BOUNDS);
        for latency in [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(100_000_000)] {
            histogram.observe(latency);
        }
        let sum = read(&histogram);
        assert_eq!((sum.count(), sum.sum_s), (3, 100_000_001.0));
        assert_eq!((sum.buckets[0], sum.buckets[BOUNDS]), (1, 1));
    }

    #[test]
    fn shared_latencies_count_each_and_sum_to_the_whole() {
        let histogram = Histogram::new(&ITL_BOUNDS);
        histogram.observe_shared(Duration::from_millis(31), 4);
        histogram.observe_shared(Duration::from_millis(31), 0);
        let sum = read(&histogram);
        assert_eq!((sum.count(), sum.sum_s, sum.buckets[3]), (4, 0.031, 4), "7.75 ms each");
        assert_eq!(sum.mean_ms(), Some(7.75));
    }

    #[test]
    fn n_events_close_n_minus_1_gaps_however_reads_cut_them() {
        for reads in [vec![(1, 10), (1, 20), (1, 30)], vec![(3, 30)], vec![(2, 20), (1, 30)], vec![(1, 10), (2, 30)]] {
            let histogram = Histogram::new(&ITL_BOUNDS);
            let mut gaps = EventGaps::default();
            for &(events, at_ms) in &reads {
                gaps.observe(events, Duration::from_millis(at_ms), &histogram);
            }
            let sum = read(&histogram);
            assert_eq!(sum.count(), 2, "{reads:?}");
            let (first, last) = (reads[0].1, reads[reads.len() - 1].1);
            assert!((sum.sum_ms() - (last - first) as f64).abs() < 1e-9, "{reads:?}: {sum:?}");
        }
    }
}
