//! What requests put on an engine. Pure.

use crate::model::{Class, Fleet};

/// Work of requests, and by how much an engine's two times are multiplied in what they cost:
/// docs/model.md, sections 1 and 2.
///
/// Of one request, of requests/s, or, as a mix, of one unit of work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Reference requests of the engine's profile.
    pub(crate) work: f64,
    /// Weight of TTFT, and weight of TBOT with the output tokens in it.
    pub(crate) ttft: f64,
    pub(crate) decode: f64,
}

impl Load {
    /// One request of `class`.
    pub(crate) fn of(class: &Class) -> Self {
        Self { work: class.work, ttft: class.ttft_weight, decode: class.decode_weight * class.output_tokens }
    }

    /// Whether the classes of `fleet` differ in nothing but the amount of work, so that its program
    /// is convex.
    pub(crate) fn has_one_mix(fleet: &Fleet) -> bool {
        fleet.classes.windows(2).all(|pair| Self::of(&pair[0]).mix() == Self::of(&pair[1]).mix())
    }

    pub(crate) fn times(self, amount: f64) -> Self {
        Self { work: self.work * amount, ttft: self.ttft * amount, decode: self.decode * amount }
    }

    /// The load `step` of the way to `other`.
    pub(crate) fn towards(self, other: Self, step: f64) -> Self {
        let mut at = self.times(1.0 - step);
        at.add(other.times(step));
        at
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.work += other.work;
        self.ttft += other.ttft;
        self.decode += other.decode;
    }

    /// The same per unit of work; `None` where there is none.
    pub(crate) fn mix(self) -> Option<Self> {
        (self.work > 0.0).then(|| Self { work: 1.0, ttft: self.ttft / self.work, decode: self.decode / self.work })
    }

    /// What this costs, in ms (per request or x requests/s), when the engine's times are these.
    pub(crate) fn cost(self, ttft_ms: f64, tbot_ms: f64) -> f64 {
        self.ttft * ttft_ms + self.decode * tbot_ms
    }

    /// What this has beyond as much work of `mix`.
    pub(crate) fn beyond(self, mix: Self) -> Self {
        Self { work: 0.0, ttft: self.ttft - self.work * mix.ttft, decode: self.decode - self.work * mix.decode }
    }
}
