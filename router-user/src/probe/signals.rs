//! Signals in one form, whichever engine they come from.

use serde::{Deserialize, Serialize};

/// Largest number of requests, replicas, tokens or seconds that is believed. Beyond 2^53, about
/// 9e15, a float cannot count.
const AMOUNT_MAX: f64 = 9e15;
/// Largest use of a cache that is believed, as a share. By its own count a cache may briefly hold a
/// little more than it has; a value far above 1 is no share.
const USAGE_MAX_FRAC: f64 = 1.5;

/// The engine software that gave the signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    Vllm,
    Sglang,
    /// `sglang-router` or `smg` in front of several engines.
    SglangRouter,
    TrtllmServe,
    Triton,
    Tgi,
    LlamaCpp,
    /// The response header `endpoint-load-metrics`.
    Orca,
}

/// Signals of one engine at one moment. A field is `None` if the engine did not give it, or gave an
/// impossible value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineSignals {
    pub family: Family,
    /// Requests in the batch, and requests in the engine's queue.
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    /// Share of the KV cache in use, 0 to 1; the mean over ranks.
    pub kv_usage_frac: Option<f64>,
    /// Live replicas behind this address, as counted by a router in front of them.
    pub ready_replicas: Option<u32>,
    /// Data-parallel ranks or replicas that report one by one. A page of one replica among several
    /// shows 1, so this alone is not the number of replicas.
    pub ranks: Option<u32>,
    pub prefix: Option<PrefixCache>,
    /// Time to first token, without the way to the engine.
    pub ttft: Option<Timings>,
    /// Time between tokens, or its mean per request: see [`Family::times_requests`].
    pub itl: Option<Timings>,
    /// Time from arrival to the end. Its count is the number of answers.
    #[serde(default)]
    pub e2e: Option<Timings>,
}

/// Counters of the prefix cache, in the engine's own unit (tokens or blocks); both only grow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefixCache {
    pub queries: f64,
    pub hits: f64,
}

/// Sum and count of a histogram; both only grow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    pub sum_s: f64,
    pub count: f64,
}

impl Family {
    /// True if the engine adds the mean gap of each request to its time between tokens, and not
    /// each gap: then its count is of requests.
    pub fn times_requests(self) -> bool {
        matches!(self, Self::TrtllmServe | Self::Tgi)
    }
}

impl EngineSignals {
    pub(super) fn nothing(family: Family) -> Self {
        Self {
            family,
            running: None,
            waiting: None,
            kv_usage_frac: None,
            ready_replicas: None,
            ranks: None,
            prefix: None,
            ttft: None,
            itl: None,
            e2e: None,
        }
    }

    /// True if no signal is known.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self { ranks: self.ranks, ..Self::nothing(self.family) }
    }

    /// Requests in the engine, running or waiting; `None` unless both are known.
    pub fn in_engine(&self) -> Option<f64> {
        Some(self.running? + self.waiting?)
    }
}

impl Timings {
    /// Mean of the timings since `before`, in s; `None` without one, or if the counters were reset.
    pub fn mean_since(&self, before: &Self) -> Option<f64> {
        let (sum_s, count) = (self.sum_s - before.sum_s, self.count - before.count);
        (count > 0.0 && sum_s >= 0.0).then(|| sum_s / count)
    }
}

impl PrefixCache {
    /// Share of hits since `before`; `None` without a query, or if the counters were reset.
    pub fn hit_frac_since(&self, before: &Self) -> Option<f64> {
        let (queries, hits) = (self.queries - before.queries, self.hits - before.hits);
        (queries > 0.0 && (0.0..=queries).contains(&hits)).then(|| hits / queries)
    }
}

/// A number of requests, tokens or seconds, if it is possible.
pub(super) fn amount(value: f64) -> Option<f64> {
    (0.0..=AMOUNT_MAX).contains(&value).then_some(value)
}

/// A share of a cache, if it is possible.
pub(super) fn usage(value: f64) -> Option<f64> {
    (0.0..=USAGE_MAX_FRAC).contains(&value).then(|| value.min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_began_anew_say_nothing() {
        let timings = |sum_s, count| Timings { sum_s, count };
        assert_eq!(timings(3.0, 14.0).mean_since(&timings(1.0, 10.0)), Some(0.5));
        assert_eq!(timings(3.0, 10.0).mean_since(&timings(1.0, 10.0)), None);
        assert_eq!(timings(0.5, 2.0).mean_since(&timings(1.0, 10.0)), None);
        let cache = |queries, hits| PrefixCache { queries, hits };
        assert_eq!(cache(200.0, 90.0).hit_frac_since(&cache(100.0, 40.0)), Some(0.5));
        assert_eq!(cache(100.0, 40.0).hit_frac_since(&cache(100.0, 40.0)), None);
        assert_eq!(cache(10.0, 4.0).hit_frac_since(&cache(100.0, 40.0)), None);
    }

    #[test]
    fn numbers_that_cannot_be_true_are_unknown() {
        assert_eq!([amount(-1.0), amount(f64::NAN), amount(f64::INFINITY), amount(1e300)], [None; 4]);
        assert_eq!([usage(0.5), usage(1.2), usage(55.0), usage(f64::NAN)], [Some(0.5), Some(1.0), None, None]);
    }
}
