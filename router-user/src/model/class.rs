//! Classes: requests that routing does not tell apart.

use super::eligibility::{Ineligible, Tags};

/// Requests that are interchangeable for routing.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    pub name: String,
    pub model: String,
    /// Mean prompt length, in tokens; 0 where nobody said.
    pub prompt_tokens: f64,
    /// Mean output length, in tokens.
    pub output_tokens: f64,
    /// Share of the prompt's tokens that a request finds in the prefix cache of the engine it is
    /// sent to, 0 to 1.
    pub prefix_hit_frac: f64,
    /// Load that one request is, in requests of the kind that profiles were measured with; > 0.
    pub work: f64,
    /// What a ms of TTFT (and of network), and a ms of decoding, count for in the objective; >= 0.
    pub ttft_weight: f64,
    pub decode_weight: f64,
    /// Engines farther away than this, in ms of round trip, may not serve it.
    pub rtt_cap_ms: Option<f64>,
    /// 0 is served first.
    pub priority: u8,
    /// Tags an engine must have.
    pub require: Tags,
    /// What a request loses, in ms, that goes elsewhere than the one before it: its prefill, as far
    /// as a cache had it.
    pub move_price_ms: f64,
}

/// A class without a name or a model: one reference request at a time, every ms counts the same, no
/// distance is too far.
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
            require: Tags::new(),
            move_price_ms: 0.0,
        }
    }
}

impl Class {
    /// Whether an engine at this round-trip time is too far away; `None` when it may serve the
    /// class.
    pub fn too_far(&self, rtt_ms: f64) -> Option<Ineligible> {
        self.rtt_cap_ms.filter(|&cap_ms| rtt_ms > cap_ms).map(|cap_ms| Ineligible::TooFar { rtt_ms, cap_ms })
    }
}
