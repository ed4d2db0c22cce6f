//! Cost of an engine at a load: the true curve, its linear segments, and its minimum under a price.

use crate::model::{EngineId, Fleet, Profile};

use super::load::Load;
use super::{Inputs, bursts};

/// Assumed duration of an overload, in ms, until capacity is added: about the time that an
/// inference server needs to be placed, to start and to load its weights. Until then the queue of
/// an engine with load above capacity only grows.
const OVERLOAD_HORIZON_MS: f64 = 600_000.0;

/// Largest relative overload, in capacities, that adds cost: the bound keeps the cost finite where
/// capacity is 0.
const OVERLOAD_LIMIT: f64 = 100.0;

/// Static breakpoints as fractions of the free capacity, dense near saturation, where the curve
/// bends. docs/model.md, section 3.
const BREAKPOINTS: [f64; 19] =
    [0.0, 0.15, 0.30, 0.45, 0.55, 0.65, 0.72, 0.78, 0.83, 0.87, 0.90, 0.925, 0.945, 0.96, 0.972, 0.982, 0.99, 0.995, 1.0];

/// Refined breakpoints around the load of the last round, as fractions of the half-width of the
/// refinement.
const REFINED: [f64; 9] = [-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0];

/// Distance from a knot within which a load counts as on it, as a fraction of the capacity: the
/// half-width of the finest breakpoints.
const KNEE_FRAC: f64 = 1e-5;

/// Latency and cost of one engine, or of a pool, as functions of load with its ready replicas.
#[derive(Clone, Debug)]
pub(crate) struct EngineCost<'a> {
    profile: &'a Profile,
    /// Replicas per ready replica: a load on the ready replicas slows them as much as `stretch`
    /// times that load on all replicas. 0 when no replica is ready.
    stretch: f64,
    /// Factor on the times of the profile; >= 1.
    slowdown: f64,
    pub(crate) capacity_rps: f64,
    /// Delay that bursts add to TTFT at half of the profile's capacity, in ms.
    burst_ms: f64,
}

/// One linear segment of an engine's cost: up to `width_rps` more load at `slope_ms` per unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) width_rps: f64,
    pub(crate) slope_ms: f64,
}

impl<'a> EngineCost<'a> {
    pub(crate) fn new(fleet: &'a Fleet, inputs: &Inputs, engine: EngineId) -> Self {
        let (ready, replicas) = (inputs.ready[engine.index()], fleet.engines[engine.index()].replicas);
        let stretch = if ready == 0 { 0.0 } else { f64::from(replicas) / f64::from(ready) };
        Self {
            profile: fleet.profile_of(engine),
            stretch,
            slowdown: inputs.slowdown[engine.index()],
            capacity_rps: inputs.capacity_rps(fleet, engine),
            burst_ms: inputs.burst_ms[engine.index()],
        }
    }

    /// Engines of one profile and slowdown as one engine, at equal utilisation: each member's load
    /// is on its own ready replicas.
    pub(crate) fn pooled(fleet: &'a Fleet, inputs: &Inputs, members: &[EngineId]) -> Self {
        if let [only] = members {
            return Self::new(fleet, inputs, *only);
        }
        let ready = |e: &EngineId| f64::from(inputs.ready[e.index()]) / f64::from(fleet.engines[e.index()].replicas);
        let whole: f64 = members.iter().map(ready).sum();
        Self {
            profile: fleet.profile_of(members[0]),
            stretch: if whole > 0.0 { 1.0 / whole } else { 0.0 },
            slowdown: inputs.slowdown[members[0].index()],
            capacity_rps: members.iter().map(|&engine| inputs.capacity_rps(fleet, engine)).sum(),
            burst_ms: inputs.burst_ms[members[0].index()],
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.stretch > 0.0
    }

    /// Time to the first token, in ms.
    pub(crate) fn ttft_ms(&self, load_rps: f64) -> f64 {
        let profile_ms = self.slowdown * self.profile.ttft_ms.value(load_rps * self.stretch);
        profile_ms + self.burst_ms * bursts::wait(self.utilisation(load_rps))
    }

    /// Time between tokens, in ms.
    pub(crate) fn tbot_ms(&self, load_rps: f64) -> f64 {
        self.slowdown * self.profile.tbot_ms.value(load_rps * self.stretch)
    }

    /// TTFT and TBOT at a load, in ms.
    pub(crate) fn times_ms(&self, load_rps: f64) -> (f64, f64) {
        (self.ttft_ms(load_rps), self.tbot_ms(load_rps))
    }

    /// Cost of the load `of` at this load of the engine, in ms, without the cost of overload.
    pub(crate) fn cost_ms(&self, load_rps: f64, of: Load) -> f64 {
        of.cost(self.ttft_ms(load_rps), self.tbot_ms(load_rps))
    }

    /// Latency that a load above capacity adds to every request, in ms: the mean wait in a queue
    /// that grows by `load - capacity` for [`OVERLOAD_HORIZON_MS`].
    pub(crate) fn overload_ms(&self, load_rps: f64) -> f64 {
        let excess = if load_rps <= self.capacity_rps {
            0.0
        } else if self.capacity_rps > 0.0 {
            load_rps / self.capacity_rps - 1.0
        } else {
            OVERLOAD_LIMIT
        };
        excess.min(OVERLOAD_LIMIT) * OVERLOAD_HORIZON_MS / 2.0
    }

    /// Cost of the whole load of this `mix`, in requests/s x ms. With weights of 1 it is the number
    /// of requests in the engine x 1000 (Little's law).
    pub(crate) fn total(&self, load_rps: f64, mix: Load) -> f64 {
        load_rps * self.cost_ms(load_rps, mix)
    }

    /// Marginal cost: the slope of [`Self::total`] to the right of `load_rps`, in ms. It is the own
    /// latency of one more unit of work and its externality.
    pub(crate) fn marginal_ms(&self, load_rps: f64, mix: Load) -> f64 {
        self.cost_ms(load_rps, mix) + load_rps * self.slope_ms(load_rps, mix)
    }

    /// Slope of the cost of `of` to the right of `load_rps`, in ms per unit of work/s.
    pub(crate) fn slope_ms(&self, load_rps: f64, of: Load) -> f64 {
        let tbot_slope = self.slowdown * self.profile.tbot_ms.slope(load_rps * self.stretch);
        of.cost(self.ttft_slope(load_rps), tbot_slope) * self.stretch
    }

    /// Slope of TTFT to the right of `load_rps`, in ms per request/s on all replicas.
    fn ttft_slope(&self, load_rps: f64) -> f64 {
        let bursts = self.burst_ms * bursts::slope(self.utilisation(load_rps)) / self.profile.capacity_rps;
        self.slowdown * self.profile.ttft_ms.slope(load_rps * self.stretch) + bursts
    }

    /// Load as a fraction of the profile's capacity on the ready replicas, without headroom.
    fn utilisation(&self, load_rps: f64) -> f64 {
        load_rps * self.stretch / self.profile.capacity_rps
    }

    /// The knot of the profile at `load_rps`, if there is one, and the jump of the marginal cost
    /// there, in ms.
    pub(crate) fn knee(&self, load_rps: f64, mix: Load) -> Option<(f64, f64)> {
        let near = self.capacity_rps * KNEE_FRAC;
        let at = self.knots(0.0, self.capacity_rps).find(|knot| (knot - load_rps).abs() <= near)?;
        Some((at, self.marginal_ms(at + near, mix) - self.marginal_ms(at - near, mix)))
    }

    /// Knots of the profile and of bursts as loads of this engine, strictly between `from` and
    /// `to`.
    fn knots(&self, from: f64, to: f64) -> impl Iterator<Item = f64> + '_ {
        let curves = [&self.profile.ttft_ms, &self.profile.tbot_ms];
        let loads = curves.into_iter().flat_map(|curve| curve.knots()).map(|&(load, _)| load);
        let loads = loads.chain(self.burst_knots().iter().map(|&(share, _)| share * self.profile.capacity_rps));
        loads.map(|load| load / self.stretch).filter(move |&load| load > from && load < to)
    }

    fn burst_knots(&self) -> &'static [(f64, f64)] {
        if self.burst_ms > 0.0 { &bursts::KNOTS } else { &[] }
    }

    /// Number of segments that [`Self::segments`] returns; it does not depend on the arguments.
    pub(crate) fn segment_count(&self) -> usize {
        let knots = self.profile.ttft_ms.knots().len() + self.profile.tbot_ms.knots().len() + self.burst_knots().len();
        if self.is_ready() { BREAKPOINTS.len() + REFINED.len() + knots } else { 0 }
    }

    /// Chords of the cost between `from` and capacity, with non-decreasing slopes, refined within
    /// `half_width` of `around`.
    ///
    /// Shape: always [`Self::segment_count`] segments, the last ones with width 0, so that a model
    /// can be edited in place.
    pub(crate) fn segments(&self, from: f64, mix: Load, around: f64, half_width: f64) -> Vec<Segment> {
        if !self.is_ready() {
            return Vec::new();
        }
        let to = self.capacity_rps.max(from);
        let mut loads: Vec<f64> = BREAKPOINTS.iter().map(|share| from + share * (to - from)).collect();
        loads.extend(self.knots(from, to));
        loads.extend(REFINED.iter().map(|share| around + share * half_width).filter(|&load| load > from && load < to));
        loads.sort_by(f64::total_cmp);
        let mut segments = Vec::with_capacity(self.segment_count());
        let mut least = 0.0_f64;
        for pair in loads.windows(2) {
            // The slope of load x latency between two loads. This form is exact also for narrow
            // segments, unlike a difference of two large totals.
            let (a, b) = (pair[0], pair[1]);
            let (low, high) = (self.cost_ms(a, mix), self.cost_ms(b, mix));
            let growth = if b - a > to * f64::EPSILON * 16.0 { (high - low) / (b - a) } else { self.slope_ms(a, mix) };
            least = least.max(high + a * growth);
            segments.push(Segment { width_rps: b - a, slope_ms: least });
        }
        segments.resize(self.segment_count(), Segment { width_rps: 0.0, slope_ms: least.max(self.marginal_ms(to, mix)) });
        segments
    }

    /// Minimum of `total(load) - price x load` over loads from `from` to capacity, on the true
    /// curve.
    pub(crate) fn cheapest(&self, from: f64, mix: Load, price_ms: f64) -> f64 {
        let to = self.capacity_rps.max(from);
        let mut loads: Vec<f64> = if self.is_ready() { self.knots(from, to).collect() } else { Vec::new() };
        loads.extend([from, to]);
        loads.sort_by(f64::total_cmp);
        let value = |load: f64| self.total(load, mix) - price_ms * load;
        let mut least = value(from).min(value(to));
        for pair in loads.windows(2) {
            // Between knots the total is a quadratic: latency = rest + slope x load. The slope is
            // taken in the middle, since a knot that is scaled to the ready replicas may round to
            // either side of itself.
            let middle = (pair[0] + pair[1]) / 2.0;
            let slope = self.slope_ms(middle, mix);
            let rest = self.cost_ms(middle, mix) - slope * middle;
            let turn = if slope > 0.0 { (price_ms - rest) / (2.0 * slope) } else { pair[0] };
            least = least.min(value(turn.clamp(pair[0], pair[1])));
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Curve;

    const MIX: Load = Load { work: 1.0, ttft: 1.0, decode: 50.0 };

    fn profile() -> Profile {
        Profile {
            name: "p".to_owned(),
            capacity_rps: 100.0,
            ttft_ms: Curve::new(vec![(0.0, 120.0), (50.0, 150.0), (90.0, 400.0), (100.0, 900.0)]).expect("convex"),
            tbot_ms: Curve::new(vec![(0.0, 8.0), (100.0, 20.0)]).expect("convex"),
            law: None,
            kv_tokens: None,
        }
    }

    #[test]
    fn segments_are_convex_lie_on_the_curve_and_keep_their_number() {
        let profile = profile();
        let cases = [(1.0, 1.0, 100.0, 0.0), (2.0, 1.0, 50.0, 0.0), (4.0, 1.7, 20.0, 7.5), (1.0, 3.0, 90.0, 95.0)];
        for (stretch, slowdown, capacity_rps, from) in cases {
            let cost = EngineCost { profile: &profile, stretch, slowdown, capacity_rps, burst_ms: 40.0 * (stretch - 1.0) };
            for (around, half_width) in [(0.0, 0.0), (capacity_rps / 2.0, 1e-3), (capacity_rps, 40.0)] {
                let segments = cost.segments(from, MIX, around, half_width);
                assert_eq!(segments.len(), cost.segment_count());
                assert!(segments.windows(2).all(|pair| pair[0].slope_ms <= pair[1].slope_ms));
                let (mut load, mut total) = (from, cost.total(from, MIX));
                for segment in segments {
                    load += segment.width_rps;
                    total += segment.width_rps * segment.slope_ms;
                    let truth = cost.total(load, MIX);
                    assert!((total - truth).abs() < 1e-6 * truth, "{total} at {load}, wanted {truth}");
                }
                assert!((load - capacity_rps.max(from)).abs() < 1e-9, "segments end at {load}");
            }
        }
    }

    #[test]
    fn cheapest_is_the_least_of_a_fine_grid() {
        for nth in 1..150 {
            // Knots and ready replicas that scale to loads on either side of where the knots were
            // measured.
            let knot = 100.0 * (f64::from(nth) * 0.618_033_988_749_895).fract();
            let ttft_ms = Curve::new(vec![(0.0, 50.0), (knot, 50.0 + 0.3 * knot), (knot + 50.0, 1_000.0)]).expect("convex");
            let profile = Profile { ttft_ms, ..profile() };
            let stretch = f64::from(nth % 12 + 11) / 11.0;
            let slowdown = 1.0 + f64::from(nth % 5) / 4.0;
            let burst_ms = f64::from(nth % 3) * 20.0;
            let cost = EngineCost { profile: &profile, stretch, slowdown, capacity_rps: 100.0 / stretch, burst_ms };
            let turns = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0].map(|share| cost.marginal_ms(share * cost.capacity_rps, MIX));
            for price in turns.into_iter().chain([0.0, 1e6]) {
                for from in [0.0, 30.0 / stretch, 120.0 / stretch] {
                    let width = cost.capacity_rps.max(from) - from;
                    let grid = (0..=2_000).map(|step| from + f64::from(step) / 2_000.0 * width);
                    let least = grid.map(|load| cost.total(load, MIX) - price * load).fold(f64::INFINITY, f64::min);
                    let found = cost.cheapest(from, MIX, price);
                    assert!(found <= least + 1e-9 && found > least - 0.5 - 1e-3 * least.abs(), "{found}, grid has {least}");
                }
            }
        }
    }
}
