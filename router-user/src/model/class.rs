//! Classes: requests that routing treats alike.

use super::eligibility::{Ineligible, Tags};

/// Requests that are interchangeable for routing.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    pub name: String,
    pub model: String,
    /// Mean prompt length, in tokens; 0 where the configuration does not give it.
    pub prompt_tokens: f64,
    /// Mean output length, in tokens.
    pub output_tokens: f64,
    /// Prefix hit rate: fraction of the prompt's tokens that the engine has in its prefix cache, 0
    /// to 1.
    pub prefix_hit_frac: f64,
    /// Load of one request, in requests of the kind that the profiles were measured with; > 0.
    pub work: f64,
    /// Weights in the objective of one ms of TTFT (and of network), and of one ms of decoding; >=
    /// 0.
    pub ttft_weight: f64,
    pub decode_weight: f64,
    /// Round-trip cap, in ms: engines beyond it are not eligible.
    pub rtt_cap_ms: Option<f64>,
    /// Priority: 0 is served first.
    pub priority: u8,
    /// TTFT that clients accept, in ms; > 0.
    pub ttft_budget_ms: f64,
    /// Tags an engine must have.
    pub require: Tags,
    /// Move price: loss of a request, in ms, that goes to another engine than the requests before
    /// it. It is the prefill of the cached part of its prompt.
    pub move_price_ms: f64,
}

/// A class without a name or a model: one reference request of work, every ms counts the same, no
/// round-trip cap.
impl Default for Class {
    fn default() -> Self {
        Self {
            name: String::new(),
            model: String::new(),
            prompt_tokens: 0.0,
            output_tokens: 0.0,
            prefix_hit_frac: 0.0,
            work: 1.0,
            ttft_weight: 1.0,
            decode_weight: 1.0,
            rtt_cap_ms: None,
            priority: 0,
            ttft_budget_ms: 10_000.0,
            require: Tags::new(),
            move_price_ms: 0.0,
        }
    }
}

impl Class {
    /// Why an engine at this round-trip time is too far away; `None` if it may serve the class.
    pub fn too_far(&self, rtt_ms: f64) -> Option<Ineligible> {
        self.rtt_cap_ms.filter(|&cap_ms| rtt_ms > cap_ms).map(|cap_ms| Ineligible::TooFar { rtt_ms, cap_ms })
    }
}
