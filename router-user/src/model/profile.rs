//! Profiles: latency and capacity of an engine kind as functions of load.

use super::{Class, Curve};

/// Latency and capacity of one kind of engine, measured with all its replicas ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: String,
    /// Capacity: load at which the engine is full, in requests/s of the kind that the profile was
    /// measured with; > 0.
    pub capacity_rps: f64,
    /// TTFT: time to the first output token, in ms, over load.
    pub ttft_ms: Curve,
    /// TBOT: time between two output tokens, in ms, over load.
    pub tbot_ms: Curve,
    /// Duration of its iterations and the reference request, where they are known.
    pub law: Option<WorkLaw>,
    /// Tokens that its KV cache holds with all replicas ready; > 0. Where it is known, memory is a
    /// limit beside capacity.
    pub kv_tokens: Option<f64>,
}

/// Work law of continuous batching: an iteration takes `base + prompt_token x prompt tokens +
/// sequence x batch` ms; docs/model.md, section 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkLaw {
    pub base_ms: f64,
    pub prompt_token_ms: f64,
    pub sequence_ms: f64,
    /// Number of sequences in a full batch; >= 1.
    pub max_batch: f64,
    /// Reference request, with which the profile was measured: uncached prompt tokens, and output
    /// tokens.
    pub prompt_tokens: f64,
    pub output_tokens: f64,
}

impl WorkLaw {
    /// Work of a request of `class`, in reference requests: engine time of its uncached prompt and
    /// of its output tokens in a full batch.
    pub fn work(&self, class: &Class) -> f64 {
        let time_ms = |prompt: f64, output: f64| {
            prompt * self.prompt_token_ms + output * (self.base_ms / self.max_batch + self.sequence_ms)
        };
        let uncached = class.prompt_tokens * (1.0 - class.prefix_hit_frac);
        time_ms(uncached, class.output_tokens) / time_ms(self.prompt_tokens, self.output_tokens)
    }

    /// Prefill time of the cached part of a prompt, in ms: the loss of a request of `class` that
    /// goes to an engine without its prefix.
    pub fn cached_prefill_ms(&self, class: &Class) -> f64 {
        class.prompt_tokens * class.prefix_hit_frac * self.prompt_token_ms
    }
}

impl Profile {
    /// Time from arrival at the engine to the last token, in ms, for a request of `output_tokens`
    /// at `load_rps`.
    ///
    /// Source: docs/model.md, section 1; the first of the `output_tokens` gaps is inside TTFT's own
    /// knots by convention.
    pub fn latency_ms(&self, load_rps: f64, output_tokens: f64) -> f64 {
        self.ttft_ms.value(load_rps) + output_tokens * self.tbot_ms.value(load_rps)
    }

    /// KV memory of one request/s of `class`, in units of load: memory is full where the sum over
    /// all requests equals the capacity.
    ///
    /// A request holds its prompt and, on average, half of its output while it is in the engine.
    /// Its time in the engine is taken at capacity, which is an upper bound for every lower load.
    /// `None` where the size of the cache is unknown.
    pub fn memory(&self, class: &Class) -> Option<f64> {
        let held = self.kv_tokens?;
        let stay_s = self.latency_ms(self.capacity_rps, class.output_tokens) / 1e3;
        let tokens = class.prompt_tokens + class.output_tokens / 2.0;
        Some(tokens * stay_s * self.capacity_rps / held)
    }
}
