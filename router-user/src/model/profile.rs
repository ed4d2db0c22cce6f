//! How an engine kind answers as its load grows.

use super::Curve;

/// Latency and capacity of one kind of engine, measured with all its replicas ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: String,
    /// Load at which the engine is full, in requests/s; > 0.
    pub capacity_rps: f64,
    /// Time to the first output token, in ms, over load.
    pub ttft_ms: Curve,
    /// Time between two output tokens, in ms, over load.
    pub tbot_ms: Curve,
}

impl Profile {
    /// Time from arrival at the engine to the last token, in ms, for a request of `output_tokens` at `load_rps`.
    ///
    /// Source: docs/model.md, section 1; the first of the `output_tokens` gaps is inside TTFT's own knots by convention.
    pub fn latency_ms(&self, load_rps: f64, output_tokens: f64) -> f64 {
        self.ttft_ms.value(load_rps) + output_tokens * self.tbot_ms.value(load_rps)
    }
}
