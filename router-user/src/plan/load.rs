//! The load that requests put on an engine. Pure.

use crate::model::{Class, Fleet};

/// Work of requests, and the factors of TTFT and TBOT in their cost: docs/model.md, sections 1 and
/// 2.
///
/// The values describe one request, a rate of requests, or, as a mix, one unit of work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Work in reference requests of the engine's profile.
    pub(crate) work: f64,
    /// Factor of TTFT, and factor of TBOT, which includes the output tokens.
    pub(crate) ttft: f64,
    pub(crate) decode: f64,
}

impl Load {
    /// One request of `class`.
    pub(crate) fn of(class: &Class) -> Self {
        Self { work: class.work, ttft: class.ttft_weight, decode: class.decode_weight * class.output_tokens }
    }

    /// True if the classes of `fleet` differ in work only, so that its program is convex.
    pub(crate) fn has_one_mix(fleet: &Fleet) -> bool {
        fleet.classes.windows(2).all(|pair| Self::of(&pair[0]).mix() == Self::of(&pair[1]).mix())
    }

    pub(crate) fn times(self, amount: f64) -> Self {
        Self { work: self.work * amount, ttft: self.ttft * amount, decode: self.decode * amount }
    }

    /// The point at fraction `step` of the way to `other`.
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

    /// This load per unit of work; `None` without work.
    pub(crate) fn mix(self) -> Option<Self> {
        (self.work > 0.0).then(|| Self { work: 1.0, ttft: self.ttft / self.work, decode: self.decode / self.work })
    }

    /// Cost of this load, in ms (per request, or times requests/s), at these times of the engine.
    pub(crate) fn cost(self, ttft_ms: f64, tbot_ms: f64) -> f64 {
        self.ttft * ttft_ms + self.decode * tbot_ms
    }

    /// Difference between this load and the same work of `mix`.
    pub(crate) fn beyond(self, mix: Self) -> Self {
        Self { work: 0.0, ttft: self.ttft - self.work * mix.ttft, decode: self.decode - self.work * mix.decode }
    }
}
