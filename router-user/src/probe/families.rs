//! Reads a page of metrics of any known engine.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::exposition::{Sample, samples};
use super::signals::{EngineSignals, Family, PrefixCache, Timings, amount, usage};

/// Most series of one metric. An engine has one per rank and model, a router one per engine.
const SERIES_MAX: usize = 4_096;

/// The signal that a metric is a part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Running,
    Waiting,
    KvUsage,
    PrefixQueries,
    PrefixHits,
    PrefixMisses,
    TtftSum,
    TtftCount,
    ItlSum,
    ItlCount,
    E2eSum,
    E2eCount,
}

/// A metric by its name, with `_` for every `:`. With `only`, the series with this value of this
/// label.
struct Metric {
    family: Family,
    field: Field,
    name: &'static str,
    only: Option<(&'static str, &'static str)>,
}

const fn metric(family: Family, field: Field, name: &'static str) -> Metric {
    Metric { family, field, name, only: None }
}

const fn series(family: Family, field: Field, name: &'static str, label: &'static str, value: &'static str) -> Metric {
    Metric { family, field, name, only: Some((label, value)) }
}

/// All metrics that are read. Of two names for one signal the newer stands first, and wins where a
/// page has both.
const METRICS: &[Metric] = {
    use Family::{LlamaCpp, Sglang, SglangRouter, Tgi, Triton, TrtllmServe, Vllm};
    use Field::{
        E2eCount, E2eSum, ItlCount, ItlSum, KvUsage, PrefixHits, PrefixMisses, PrefixQueries, Running, TtftCount, TtftSum,
        Waiting,
    };
    &[
        metric(Vllm, Running, "vllm_num_requests_running"),
        metric(Vllm, Waiting, "vllm_num_requests_waiting"),
        metric(Vllm, KvUsage, "vllm_kv_cache_usage_perc"),
        metric(Vllm, KvUsage, "vllm_gpu_cache_usage_perc"),
        metric(Vllm, PrefixQueries, "vllm_prefix_cache_queries_total"),
        metric(Vllm, PrefixQueries, "vllm_gpu_prefix_cache_queries_total"),
        metric(Vllm, PrefixHits, "vllm_prefix_cache_hits_total"),
        metric(Vllm, PrefixHits, "vllm_gpu_prefix_cache_hits_total"),
        metric(Vllm, TtftSum, "vllm_time_to_first_token_seconds_sum"),
        metric(Vllm, TtftCount, "vllm_time_to_first_token_seconds_count"),
        metric(Vllm, ItlSum, "vllm_inter_token_latency_seconds_sum"),
        metric(Vllm, ItlSum, "vllm_time_per_output_token_seconds_sum"),
        metric(Vllm, ItlCount, "vllm_inter_token_latency_seconds_count"),
        metric(Vllm, ItlCount, "vllm_time_per_output_token_seconds_count"),
        metric(Vllm, E2eSum, "vllm_e2e_request_latency_seconds_sum"),
        metric(Vllm, E2eCount, "vllm_e2e_request_latency_seconds_count"),
        metric(Sglang, Running, "sglang_num_running_reqs"),
        metric(Sglang, Waiting, "sglang_num_queue_reqs"),
        metric(Sglang, KvUsage, "sglang_token_usage"),
        metric(Sglang, PrefixQueries, "sglang_prompt_tokens_total"),
        metric(Sglang, PrefixHits, "sglang_cached_tokens_total"),
        metric(Sglang, TtftSum, "sglang_time_to_first_token_seconds_sum"),
        metric(Sglang, TtftCount, "sglang_time_to_first_token_seconds_count"),
        metric(Sglang, ItlSum, "sglang_inter_token_latency_seconds_sum"),
        metric(Sglang, ItlSum, "sglang_time_per_output_token_seconds_sum"),
        metric(Sglang, ItlCount, "sglang_inter_token_latency_seconds_count"),
        metric(Sglang, ItlCount, "sglang_time_per_output_token_seconds_count"),
        metric(Sglang, E2eSum, "sglang_e2e_request_latency_seconds_sum"),
        metric(Sglang, E2eCount, "sglang_e2e_request_latency_seconds_count"),
        metric(SglangRouter, Running, "smg_worker_requests_active"),
        metric(SglangRouter, Running, "sgl_router_running_requests"),
        metric(TrtllmServe, Running, "trtllm_num_requests_running"),
        metric(TrtllmServe, Waiting, "trtllm_num_requests_waiting"),
        metric(TrtllmServe, KvUsage, "trtllm_kv_cache_utilization"),
        metric(TrtllmServe, PrefixHits, "trtllm_kv_cache_reused_blocks_total"),
        metric(TrtllmServe, PrefixMisses, "trtllm_kv_cache_missed_blocks_total"),
        metric(TrtllmServe, TtftSum, "trtllm_time_to_first_token_seconds_sum"),
        metric(TrtllmServe, TtftCount, "trtllm_time_to_first_token_seconds_count"),
        metric(TrtllmServe, ItlSum, "trtllm_time_per_output_token_seconds_sum"),
        metric(TrtllmServe, ItlCount, "trtllm_time_per_output_token_seconds_count"),
        metric(TrtllmServe, E2eSum, "trtllm_e2e_request_latency_seconds_sum"),
        metric(TrtllmServe, E2eCount, "trtllm_e2e_request_latency_seconds_count"),
        series(Triton, Running, "nv_trt_llm_request_metrics", "request_type", "scheduled"),
        series(Triton, Waiting, "nv_trt_llm_request_metrics", "request_type", "waiting"),
        series(Triton, KvUsage, "nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction"),
        metric(Tgi, Running, "tgi_batch_current_size"),
        metric(Tgi, Waiting, "tgi_queue_size"),
        metric(Tgi, ItlSum, "tgi_request_mean_time_per_token_duration_sum"),
        metric(Tgi, ItlCount, "tgi_request_mean_time_per_token_duration_count"),
        metric(Tgi, E2eSum, "tgi_request_duration_sum"),
        metric(Tgi, E2eCount, "tgi_request_duration_count"),
        metric(LlamaCpp, Running, "llamacpp_requests_processing"),
        metric(LlamaCpp, Waiting, "llamacpp_requests_deferred"),
        metric(LlamaCpp, KvUsage, "llamacpp_kv_cache_usage_ratio"),
    ]
};

/// Families in order of preference, for a page that has metrics of several.
const FAMILIES: [Family; 7] =
    [Family::Vllm, Family::Sglang, Family::SglangRouter, Family::TrtllmServe, Family::Triton, Family::Tgi, Family::LlamaCpp];

/// Gauges by which routers show the live engines behind them, 1 or 0 for each.
const LIVE_REPLICAS: [&str; 3] = ["vllm_healthy_pods_total", "smg_worker_health", "sgl_router_worker_health"];

/// Labels of the shards of one replica. Each shard reports the requests of all of them.
const SHARDS: [&str; 4] = ["tp_rank", "pp_rank", "moe_ep_rank", "pid"];

/// Series of one metric. Series that differ only by shard show the same requests; all others are
/// parts of a sum.
#[derive(Default)]
struct Series {
    parts: BTreeMap<u64, f64>,
    /// A value is impossible, or there are too many series: the sum is not known.
    broken: bool,
}

impl Series {
    fn take(&mut self, sample: &Sample<'_>) {
        let mut hash = DefaultHasher::new();
        for label in sample.labels().filter(|(name, _)| !SHARDS.contains(name)) {
            label.hash(&mut hash);
        }
        let Some(value) = amount(sample.value) else { return self.broken = true };
        let has_room = self.parts.len() < SERIES_MAX;
        match self.parts.entry(hash.finish()) {
            std::collections::btree_map::Entry::Occupied(mut part) => _ = part.insert(part.get().max(value)),
            std::collections::btree_map::Entry::Vacant(part) if has_room => _ = part.insert(value),
            std::collections::btree_map::Entry::Vacant(_) => self.broken = true,
        }
    }

    fn count(&self) -> Option<usize> {
        (!self.broken && !self.parts.is_empty()).then_some(self.parts.len())
    }

    fn sum(&self) -> Option<f64> {
        self.count().map(|_| self.parts.values().sum())
    }

    fn mean(&self) -> Option<f64> {
        Some(self.sum()? / self.count()? as f64)
    }
}

/// Reads a page of Prometheus metrics; `None` without a known metric.
pub fn from_metrics(page: &[u8]) -> Option<EngineSignals> {
    let mut found: Vec<Series> = METRICS.iter().map(|_| Series::default()).collect();
    let mut live = Series::default();
    for sample in samples(page) {
        // SGLang shows the queue of each priority beside the whole.
        if sample.name.ends_with("_bucket") || sample.label("priority").is_some_and(|priority| !priority.is_empty()) {
            continue;
        }
        for (metric, series) in METRICS.iter().zip(&mut found) {
            let is_wanted = || metric.only.is_none_or(|(label, value)| sample.label(label) == Some(value));
            if is_named(sample.name, metric.name) && is_wanted() {
                series.take(&sample);
            }
        }
        if LIVE_REPLICAS.iter().any(|name| is_named(sample.name, name)) {
            live.take(&sample);
        }
    }
    let of = |family: Family| signals(family, &found);
    let knows_load = |signals: &EngineSignals| signals.running.is_some() || signals.waiting.is_some();
    let ready_replicas = live.sum().map(|replicas| replicas as u32);
    let best = FAMILIES.map(of).into_iter().filter(|signals| !signals.is_empty()).max_by_key(|s| (knows_load(s), rank(s.family)));
    match (best, ready_replicas) {
        (Some(signals), _) => Some(EngineSignals { ready_replicas, ..signals }),
        (None, Some(_)) => Some(EngineSignals { ready_replicas, ..EngineSignals::nothing(Family::SglangRouter) }),
        (None, None) => None,
    }
}

/// Preference of a family: higher for earlier ones in [`FAMILIES`].
fn rank(family: Family) -> usize {
    FAMILIES.iter().rev().position(|&f| f == family).unwrap_or_default()
}

fn is_named(name: &str, wanted: &str) -> bool {
    name.len() == wanted.len()
        && name.bytes().zip(wanted.bytes()).all(|(found, wanted)| found == wanted || (found == b':' && wanted == b'_'))
}

fn signals(family: Family, found: &[Series]) -> EngineSignals {
    let series = |field: Field| {
        let mut of_field = METRICS.iter().zip(found).filter(|(m, _)| m.family == family && m.field == field).map(|(_, s)| s);
        of_field.find(|series| series.broken || !series.parts.is_empty())
    };
    let sum = |field: Field| series(field)?.sum();
    let timings = |sum_of: Field, count_of: Field| Some(Timings { sum_s: sum(sum_of)?, count: sum(count_of)? });
    let hits = sum(Field::PrefixHits);
    let queries = sum(Field::PrefixQueries).or_else(|| Some(sum(Field::PrefixMisses)? + hits?));
    EngineSignals {
        running: sum(Field::Running),
        waiting: sum(Field::Waiting),
        kv_usage_frac: series(Field::KvUsage).and_then(Series::mean).and_then(usage),
        ranks: series(Field::Running).and_then(Series::count).map(|count| count as u32),
        prefix: queries.zip(hits).map(|(queries, hits)| PrefixCache { queries, hits }),
        ttft: timings(Field::TtftSum, Field::TtftCount),
        itl: timings(Field::ItlSum, Field::ItlCount),
        e2e: timings(Field::E2eSum, Field::E2eCount),
        ..EngineSignals::nothing(family)
    }
}

#[cfg(test)]
mod tests;
