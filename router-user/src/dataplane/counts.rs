//! The difference between two readings of the proxy's counters, in the form of a demand report.
//! Pure.

use std::collections::BTreeMap;

use crate::protocol::EngineReport;
use crate::proxy::{DataPlaneStats, EngineStats};

/// The counters that reports are made of, at one moment, since the data plane started.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    arrivals: BTreeMap<String, u64>,
    engines: BTreeMap<String, EngineReport>,
}

impl Counts {
    pub(super) fn of(stats: DataPlaneStats) -> Self {
        let of_engine = |engine: EngineStats| EngineReport {
            attempts: engine.picks,
            failures: engine.failed(),
            answers: engine.e2e.count(),
            latency_ms_sum: engine.e2e.sum_ms(),
            rtt_ms: None,
            multiplier: Some(engine.multiplier),
            engine: engine.engine,
        };
        Self {
            arrivals: stats.classes.into_iter().map(|class| (class.class, class.arrivals)).collect(),
            engines: stats.engines.into_iter().map(of_engine).map(|of| (of.engine.clone(), of)).collect(),
        }
    }

    /// Requests that have arrived since `before`, by class.
    pub(super) fn arrivals_since(&self, before: &Self) -> Vec<(String, u64)> {
        let since = |(class, &count): (&String, &u64)| {
            (class.clone(), count.saturating_sub(before.arrivals.get(class).copied().unwrap_or(0)))
        };
        self.arrivals.iter().map(since).collect()
    }

    /// What has happened at engines since `before`; `distances_ms` by engine. Engines without news
    /// are left out.
    pub(super) fn engines_since(&self, before: &Self, distances_ms: &BTreeMap<String, f64>) -> Vec<EngineReport> {
        let since = |(name, now): (&String, &EngineReport)| {
            let then = before.engines.get(name).cloned().unwrap_or_default();
            let attempts = now.attempts.saturating_sub(then.attempts);
            let report = EngineReport {
                engine: name.clone(),
                attempts,
                // A request that was sent before may fail now.
                failures: now.failures.saturating_sub(then.failures).min(attempts),
                answers: now.answers.saturating_sub(then.answers),
                latency_ms_sum: (now.latency_ms_sum - then.latency_ms_sum).max(0.0),
                rtt_ms: distances_ms.get(name).copied(),
                multiplier: now.multiplier,
            };
            let is_reduced = report.multiplier.is_some_and(|multiplier| multiplier < 1.0);
            (report.attempts > 0 || report.answers > 0 || report.rtt_ms.is_some() || is_reduced).then_some(report)
        };
        self.engines.iter().filter_map(since).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(arrivals: u64, attempts: u64, failures: u64) -> Counts {
        let engine = EngineReport { engine: "e1".to_owned(), attempts, failures, ..EngineReport::default() };
        Counts { arrivals: [("chat".to_owned(), arrivals)].into(), engines: [("e1".to_owned(), engine)].into() }
    }

    #[test]
    fn a_report_has_what_is_new_and_leaves_out_what_is_not() {
        let (before, after) = (counts(10, 12, 1), counts(15, 20, 3));
        assert_eq!(after.arrivals_since(&before), [("chat".to_owned(), 5)]);
        let engines = after.engines_since(&before, &BTreeMap::new());
        assert_eq!((engines.len(), engines[0].attempts, engines[0].failures), (1, 8, 2));
        assert!(after.engines_since(&after, &BTreeMap::new()).is_empty());
        let measured = after.engines_since(&after, &[("e1".to_owned(), 30.5)].into());
        assert_eq!((measured.len(), measured[0].rtt_ms), (1, Some(30.5)));
    }

    #[test]
    fn counters_that_began_anew_count_nothing() {
        let (before, after) = (counts(10, 12, 1), counts(2, 2, 0));
        assert_eq!(after.arrivals_since(&before), [("chat".to_owned(), 0)]);
        assert!(after.engines_since(&before, &BTreeMap::new()).is_empty());
    }
}
