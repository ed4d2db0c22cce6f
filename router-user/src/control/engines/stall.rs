//! Stall detection: whether an engine makes progress, by its own metrics; a healthy answer to a
//! probe does not show that. Pure.

use std::time::Duration;

use crate::probe::EngineSignals;

/// Longest time with running requests and without a token: the prefill of a very long prompt takes
/// tens of seconds.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// Longest time in which the queue may grow from each scrape to the next before it is reported: a
/// burst ends sooner.
const GROWING_AFTER: Duration = Duration::from_secs(60);
/// Shortest queue that counts, in requests: a few waiting requests are normal.
const QUEUE_MIN: f64 = 8.0;

/// Progress of an engine over its scrapes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// TTFT and TBOT samples counted so far, where the engine counts them.
    counted: Option<f64>,
    waiting: Option<f64>,
    /// Since when it has running requests and no new samples, and since when its queue grows with
    /// every scrape.
    stuck_since: Option<Duration>,
    growing_since: Option<Duration>,
}

impl Progress {
    /// Takes the engine's signals at `now`.
    pub(crate) fn observe(&mut self, now: Duration, signals: &EngineSignals) {
        let counts = [signals.itl, signals.ttft].map(|timings| timings.map(|timings| timings.count));
        let counted = counts.into_iter().flatten().reduce(|a, b| a + b);
        let is_busy = signals.running.is_some_and(|running| running >= 1.0);
        let is_stuck = is_busy && counted.is_some() && counted == self.counted;
        self.stuck_since = if is_stuck { self.stuck_since.or(Some(now)) } else { None };
        let is_growing =
            matches!((self.waiting, signals.waiting), (Some(before), Some(after)) if after > before && after >= QUEUE_MIN);
        self.growing_since = if is_growing { self.growing_since.or(Some(now)) } else { None };
        (self.counted, self.waiting) = (counted, signals.waiting);
    }

    /// The anomaly, in words.
    pub(crate) fn anomaly(&self, now: Duration) -> Option<&'static str> {
        let lasts = |since: Option<Duration>, limit| since.is_some_and(|since| now.saturating_sub(since) >= limit);
        if lasts(self.stuck_since, STUCK_AFTER) {
            Some("has requests and produces no tokens")
        } else if lasts(self.growing_since, GROWING_AFTER) {
            Some("its queue only grows")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signals(running: u32, waiting: u32, tokens: u32) -> EngineSignals {
        let page = format!(
            "vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n\
             vllm:inter_token_latency_seconds_sum 1\nvllm:inter_token_latency_seconds_count {tokens}\n"
        );
        crate::probe::from_metrics(page.as_bytes()).expect("known")
    }

    #[test]
    fn an_engine_that_works_without_tokens_is_found_and_one_that_idles_is_not() {
        let mut progress = Progress::default();
        let mut anomaly = |from: u64, of: &dyn Fn(u64) -> EngineSignals| {
            (from..from + 70).step_by(5).for_each(|at| progress.observe(Duration::from_secs(at), &of(at)));
            progress.anomaly(Duration::from_secs(from + 65))
        };
        assert_eq!(anomaly(0, &|at| signals(4, 0, at as u32)), None);
        assert_eq!(anomaly(70, &|_| signals(4, 0, 65)), Some("has requests and produces no tokens"));
        assert_eq!(anomaly(140, &|_| signals(0, 0, 65)), None);
        assert_eq!(anomaly(210, &|at| signals(4, at as u32, at as u32)), Some("its queue only grows"));
        assert_eq!(anomaly(280, &|at| signals(4, 200 - (at % 10) as u32, at as u32)), None);
    }
}
