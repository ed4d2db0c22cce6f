//! Sums over the last minute.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::load::Row;

/// Length of the window.
pub(super) const WINDOW_S: f64 = 60.0;

/// One interval of one (cluster, class).
#[derive(Clone, Debug, Default)]
struct Slice {
    seconds: f64,
    ended: u64,
    answered: u64,
    total_ms: f64,
    failures: u64,
    engines: BTreeMap<String, u64>,
    /// Effective weights, by engine.
    weights: BTreeMap<String, f64>,
}

/// The results of one (cluster, class) in the window.
#[derive(Debug, Default)]
pub(super) struct Window {
    slices: VecDeque<Slice>,
    pub(super) in_flight: usize,
    /// Of the last interval alone: percentiles do not add up.
    pub(super) p99_ms: Option<f64>,
}

/// Requests that ended in the window.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Sums {
    pub(super) seconds: f64,
    pub(super) answered: u64,
    pub(super) failed: u64,
    pub(super) mean_ms: Option<f64>,
}

/// The weight of one engine: published, as the mean over the window, and achieved.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Weight {
    pub(super) engine: String,
    pub(super) published: f64,
    pub(super) achieved: f64,
}

impl Window {
    pub(super) fn add(&mut self, row: &Row, seconds: f64, weights: &BTreeMap<String, f64>) {
        self.slices.push_back(Slice {
            seconds,
            ended: row.ended,
            answered: row.answered,
            total_ms: row.total.mean_ms.unwrap_or(0.0) * row.total.count as f64,
            failures: row.failures.values().sum(),
            engines: row.engines.iter().map(|(engine, share)| (engine.clone(), share.requests)).collect(),
            weights: weights.clone(),
        });
        self.in_flight = row.in_flight;
        self.p99_ms = row.total.p99_ms.or(self.p99_ms);
        while self.slices.iter().skip(1).map(|slice| slice.seconds).sum::<f64>() >= WINDOW_S {
            self.slices.pop_front();
        }
    }

    pub(super) fn sums(&self) -> Sums {
        sums(self.slices.iter())
    }

    /// The sums of several windows.
    pub(super) fn all<'w>(windows: impl Iterator<Item = &'w Self>) -> Sums {
        sums(windows.flat_map(|window| &window.slices))
    }

    /// Published and achieved weights of every engine that had either. Each interval's weights
    /// count as often as requests ended in it.
    pub(super) fn weights(&self) -> Vec<Weight> {
        let mut found: BTreeMap<&String, (f64, f64)> = BTreeMap::new();
        let (mut ended, mut served) = (0.0, 0.0);
        for slice in &self.slices {
            for (engine, weight) in &slice.weights {
                found.entry(engine).or_default().0 += weight * slice.ended as f64;
            }
            for (engine, requests) in &slice.engines {
                found.entry(engine).or_default().1 += *requests as f64;
                served += *requests as f64;
            }
            ended += slice.ended as f64;
        }
        let weight = |(engine, (published, achieved)): (&String, (f64, f64))| Weight {
            engine: engine.clone(),
            published: published / ended.max(1.0),
            achieved: achieved / served.max(1.0),
        };
        found.into_iter().map(weight).collect()
    }
}

fn sums<'s>(slices: impl Iterator<Item = &'s Slice>) -> Sums {
    let (mut sums, mut total_ms) = (Sums::default(), 0.0);
    for slice in slices {
        sums.seconds += slice.seconds;
        sums.answered += slice.answered;
        sums.failed += slice.failures;
        total_ms += slice.total_ms;
    }
    sums.mean_ms = (sums.answered > 0).then(|| total_ms / sums.answered as f64);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(requests: &[(&str, u64)], mean_ms: f64) -> Row {
        let ended: u64 = requests.iter().map(|(_, n)| n).sum();
        let engines: BTreeMap<_, _> =
            requests.iter().map(|(e, n)| (*e, serde_json::json!({ "requests": n, "share_frac": 0.0 }))).collect();
        let none =
            serde_json::json!({ "count": 0, "mean_ms": null, "p50_ms": null, "p90_ms": null, "p99_ms": null, "max_ms": null });
        let total =
            serde_json::json!({ "count": ended, "mean_ms": mean_ms, "p50_ms": 1.0, "p90_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0 });
        serde_json::from_value(serde_json::json!({
            "name": "a", "rate_rps": 1.0, "ended": ended, "answered": ended, "in_flight": 1, "late": 0, "lateness": none, "reconnects": 0,
            "failures": {}, "engines": engines, "ttft": none, "tbot": none, "total": total
        }))
        .expect("a row")
    }

    #[test]
    fn old_intervals_leave_and_weights_are_means_over_requests() {
        let mut window = Window::default();
        let weights = |e1: f64| BTreeMap::from([("e1".to_owned(), e1), ("e2".to_owned(), 1.0 - e1)]);
        window.add(&row(&[("e3", 1000)], 9.0), 30.0, &BTreeMap::new());
        window.add(&row(&[("e1", 10)], 100.0), 30.0, &weights(1.0));
        window.add(&row(&[("e1", 10), ("e2", 20)], 200.0), 30.0, &weights(0.5));
        let sums = window.sums();
        assert_eq!((sums.answered, sums.seconds), (40, 60.0));
        assert!((sums.mean_ms.expect("some") - 175.0).abs() < 1e-9);
        let weights = window.weights();
        assert_eq!(weights.len(), 2);
        assert!((weights[0].published - 0.625).abs() < 1e-9 && (weights[0].achieved - 0.5).abs() < 1e-9, "{weights:?}");
    }
}
