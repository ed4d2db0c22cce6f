//! Counters of the engine, under vLLM's metric names, so that a scraper written for vLLM reads
//! them.

use std::fmt::Write;
use std::time::Duration;

use crate::clock;

/// Upper bounds in seconds; vLLM's own buckets, thinned.
const TTFT_BOUNDS_S: [f64; 14] = [0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0];
const TBOT_BOUNDS_S: [f64; 12] = [0.001, 0.005, 0.01, 0.015, 0.02, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0];
const TOTAL_BOUNDS_S: [f64; 12] = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0];

/// KV cache of the engine, in tokens: as much as one large GPU holds beside a mid-sized model.
const KV_CACHE_TOKENS: f64 = 500_000.0;

/// Cumulative histogram in Prometheus' sense.
#[derive(Debug)]
struct Histogram {
    bounds_s: &'static [f64],
    counts: Vec<u64>,
    sum_s: f64,
}

impl Histogram {
    fn new(bounds_s: &'static [f64]) -> Self {
        Self { bounds_s, counts: vec![0; bounds_s.len() + 1], sum_s: 0.0 }
    }

    fn record(&mut self, value: Duration) {
        let seconds = value.as_secs_f64();
        self.counts[self.bounds_s.partition_point(|&bound| bound < seconds)] += 1;
        self.sum_s += seconds;
    }

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let _ = writeln!(out, "# TYPE {name} histogram");
        let mut total = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            total += count;
            let bound = self.bounds_s.get(bucket).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
        }
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {total}", self.sum_s);
    }
}

/// Counters and gauges of one engine.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) running: u64,
    pub(super) waiting: u64,
    /// Tokens held in the key-value cache by running requests.
    pub(super) kv_tokens: u64,
    pub(super) prompt_tokens: u64,
    pub(super) generation_tokens: u64,
    pub(super) finished: u64,
    pub(super) connections: u64,
    refused: u64,
    client_gone: u64,
    client_gone_at: Duration,
    ttft: Histogram,
    tbot: Histogram,
    total: Histogram,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            running: 0,
            waiting: 0,
            kv_tokens: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            finished: 0,
            connections: 0,
            refused: 0,
            client_gone: 0,
            client_gone_at: Duration::ZERO,
            ttft: Histogram::new(&TTFT_BOUNDS_S),
            tbot: Histogram::new(&TBOT_BOUNDS_S),
            total: Histogram::new(&TOTAL_BOUNDS_S),
        }
    }

    pub(super) fn first_token(&mut self, ttft: Duration) {
        self.ttft.record(ttft);
    }

    pub(super) fn next_token(&mut self, gap: Duration) {
        self.tbot.record(gap);
    }

    pub(super) fn finish(&mut self, total: Duration) {
        self.finished += 1;
        self.total.record(total);
    }

    pub(super) fn refuse(&mut self) {
        self.refused += 1;
    }

    pub(super) fn lose_client(&mut self) {
        self.client_gone += 1;
        self.client_gone_at = clock::unix_time();
    }

    /// The Prometheus text.
    pub(super) fn text(&self, model: &str, engine: &str, load_rps: f64) -> String {
        let labels = format!("model_name=\"{}\",engine=\"{}\"", escape(model), escape(engine));
        let mut out = String::with_capacity(8 * 1024);
        let mut single = |kind: &str, name: &str, value: f64| {
            let _ = writeln!(out, "# TYPE {name} {kind}\n{name}{{{labels}}} {value}");
        };
        single("gauge", "vllm:num_requests_running", self.running as f64);
        single("gauge", "vllm:num_requests_waiting", self.waiting as f64);
        single("gauge", "vllm:kv_cache_usage_perc", (self.kv_tokens as f64 / KV_CACHE_TOKENS).min(1.0));
        single("counter", "vllm:prompt_tokens_total", self.prompt_tokens as f64);
        single("counter", "vllm:generation_tokens_total", self.generation_tokens as f64);
        single("gauge", "false_engine_load_rps", load_rps);
        single("gauge", "false_engine_connections", self.connections as f64);
        single("counter", "false_engine_refused_total", self.refused as f64);
        single("counter", "false_engine_client_gone_total", self.client_gone as f64);
        single("gauge", "false_engine_client_gone_timestamp_seconds", self.client_gone_at.as_secs_f64());
        let _ = writeln!(out, "# TYPE vllm:request_success_total counter");
        let _ = writeln!(out, "vllm:request_success_total{{{labels},finished_reason=\"length\"}} {}", self.finished);
        self.ttft.write(&mut out, "vllm:time_to_first_token_seconds", &labels);
        self.tbot.write(&mut out, "vllm:inter_token_latency_seconds", &labels);
        self.total.write(&mut out, "vllm:e2e_request_latency_seconds", &labels);
        out
    }
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_cumulative() {
        let mut metrics = Metrics::new();
        for ms in [1, 3, 900, 20_000] {
            metrics.first_token(Duration::from_millis(ms));
        }
        let text = metrics.text("m", "e\"1", 0.0);
        for line in [
            r#"vllm:time_to_first_token_seconds_bucket{model_name="m",engine="e\"1",le="0.001"} 1"#,
            r#"vllm:time_to_first_token_seconds_bucket{model_name="m",engine="e\"1",le="0.005"} 2"#,
            r#"vllm:time_to_first_token_seconds_bucket{model_name="m",engine="e\"1",le="1"} 3"#,
            r#"vllm:time_to_first_token_seconds_bucket{model_name="m",engine="e\"1",le="+Inf"} 4"#,
            r#"vllm:time_to_first_token_seconds_count{model_name="m",engine="e\"1"} 4"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
