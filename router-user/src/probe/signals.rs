//! The signals themselves, in one form whatever engine they come from.

use serde::{Deserialize, Serialize};

/// Largest number of requests, replicas or tokens per counter that is believed; beyond 2^53 a float no longer counts.
const MOST: f64 = 9e15;
/// A cache may briefly hold a little more than it has by its own count; what is far above 1 is no fraction.
const MOST_USAGE: f64 = 1.5;

/// Whose words the signals were given in.
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

/// What one engine said at one moment. Every field is `None` if it said nothing, or nothing that can be true.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineSignals {
    pub family: Family,
    /// Requests being worked on, and requests that wait inside the engine.
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    /// Share of the KV cache in use, 0 to 1; the mean over ranks.
    pub kv_usage_frac: Option<f64>,
    /// Live replicas behind this address, where a router in front of them counts them.
    pub ready_replicas: Option<u32>,
    /// Data-parallel ranks or replicas that report one by one. A page of one replica among several shows 1, so this alone does not say
    /// how many there are.
    pub ranks: Option<u32>,
    pub prefix: Option<PrefixCache>,
    /// Time to first token, without the way to the engine.
    pub ttft: Option<Timings>,
    /// Time between tokens; where an engine only has the mean of each request, that.
    pub itl: Option<Timings>,
    /// Time from arrival to the end; its count is that of answers.
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
    /// True if the engine adds the mean gap of each request to its time between tokens, and not each gap: then its
    /// count is of requests.
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

    /// True if nothing at all is known.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self { ranks: self.ranks, ..Self::nothing(self.family) }
    }

    /// Requests in the engine, running or waiting; `None` unless both are known.
    pub fn in_engine(&self) -> Option<f64> {
        Some(self.running? + self.waiting?)
    }
}

impl Timings {
    /// Mean of what was added since `before`, in seconds; `None` if nothing was, or the counters began anew.
    pub fn mean_since(&self, before: &Self) -> Option<f64> {
        let (sum_s, count) = (self.sum_s - before.sum_s, self.count - before.count);
        (count > 0.0 && sum_s >= 0.0).then(|| sum_s / count)
    }
}

impl PrefixCache {
    /// Share of hits since `before`; `None` if nothing was asked, or the counters began anew.
    pub fn hit_frac_since(&self, before: &Self) -> Option<f64> {
        let (queries, hits) = (self.queries - before.queries, self.hits - before.hits);
        (queries > 0.0 && (0.0..=queries).contains(&hits)).then(|| hits / queries)
    }
}

/// A number of requests, tokens or seconds that can be true.
pub(super) fn amount(value: f64) -> Option<f64> {
    (0.0..=MOST).contains(&value).then_some(value)
}

/// A share of a cache that can be true.
pub(super) fn usage(value: f64) -> Option<f64> {
    (0.0..=MOST_USAGE).contains(&value).then(|| value.min(1.0))
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
