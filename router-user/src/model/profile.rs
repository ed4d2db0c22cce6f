//! How an engine kind answers as its load grows.

use super::{Class, Curve};

/// Latency and capacity of one kind of engine, measured with all its replicas ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: String,
    /// Load at which the engine is full, in requests/s of the kind it was measured with; > 0.
    pub capacity_rps: f64,
    /// Time to the first output token, in ms, over load.
    pub ttft_ms: Curve,
    /// Time between two output tokens, in ms, over load.
    pub tbot_ms: Curve,
    /// What its iterations take, and the request it was measured with, where that is known.
    pub law: Option<WorkLaw>,
    /// Tokens that its KV cache holds, all replicas ready; > 0. Where it is known, memory is a
    /// limit beside capacity.
    pub kv_tokens: Option<f64>,
}

/// An iteration of continuous batching takes `base + prompt_token x prompt tokens + sequence x
/// batch` ms; docs/model.md, section 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkLaw {
    pub base_ms: f64,
    pub prompt_token_ms: f64,
    pub sequence_ms: f64,
    /// Sequences of a full batch; >= 1.
    pub max_batch: f64,
    /// The request that the profile was measured with: prompt tokens that no cache had, and output
    /// tokens.
    pub prompt_tokens: f64,
    pub output_tokens: f64,
}

impl WorkLaw {
    /// Work of a request of `class`, in reference requests: engine time of its uncached prompt, and
    /// of its tokens in a full batch.
    pub fn work(&self, class: &Class) -> f64 {
        let time_ms = |prompt: f64, output: f64| {
            prompt * self.prompt_token_ms + output * (self.base_ms / self.max_batch + self.sequence_ms)
        };
        let uncached = class.prompt_tokens * (1.0 - class.prefix_hit_frac);
        time_ms(uncached, class.output_tokens) / time_ms(self.prompt_tokens, self.output_tokens)
    }

    /// What a request of `class` loses, in ms, that comes to an engine without its prefix: the
    /// prefill of what was cached.
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

    /// KV memory that one request/s of `class` holds, in units of load: memory is full where these
    /// sum to the capacity.
    ///
    /// A request holds its prompt and, on average, half of its output for as long as it stays,
    /// which is taken to be what it would at capacity: on the safe side at every lower load. `None`
    /// where the size of the cache is not known.
    pub fn memory(&self, class: &Class) -> Option<f64> {
        let held = self.kv_tokens?;
        let stay_s = self.latency_ms(self.capacity_rps, class.output_tokens) / 1e3;
        let tokens = class.prompt_tokens + class.output_tokens / 2.0;
        Some(tokens * stay_s * self.capacity_rps / held)
    }
}
