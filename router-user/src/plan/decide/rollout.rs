//! From current weights to new ones without overfilling an engine on the way. Pure.
//!
//! Data planes pull a snapshot at different times. Until all have it, each may use the old weights
//! or the new ones, so an engine's largest load is the sum of the larger of the two flows. This sum
//! must fit the ready replicas; the headroom may be used. docs/model.md, section 7.

use crate::model::{EngineId, Fleet};

use crate::plan::{Inputs, RouteWeights};

/// Rounding error of a load: as a fraction of a capacity, and in requests/s.
const TOLERANCE: f64 = 1e-6;

/// A share of a route below this does not come from a plan.
const LEAST_WEIGHT: f64 = 1e-9;

/// The largest step that is free.
#[derive(Clone, Debug, PartialEq)]
pub struct Passage {
    /// Largest fraction of the way, 0 to 1, that overfills no engine while some data planes have
    /// gone it and some have not.
    pub frac: f64,
    /// The engine that limits the step; `None` if the whole way is free.
    pub engine: Option<EngineId>,
}

/// Loads of an engine, in units of its capacity, while data planes are between `current` and
/// `next`.
#[derive(Clone, Copy, Debug, Default)]
struct Between {
    before: f64,
    /// The load that growing flows add.
    growth: f64,
}

/// How much of the way from `current` to `next` is free. Both must be legal for `inputs`.
///
/// With `x` going from `k` to `k + frac (x - k)` the larger of both is `k + frac max(0, x - k)`, so
/// each engine has one equation.
pub fn passage(fleet: &Fleet, inputs: &Inputs, current: &[RouteWeights], next: &[RouteWeights]) -> Passage {
    let mut work = vec![Between::default(); fleet.engines.len()];
    let mut memory = work.clone();
    for (before, after) in pairs(fleet, current, next) {
        let class = &fleet.classes[after.class.index()];
        let rps = inputs.demand(after.cluster, after.class);
        for (engine, before, after) in flows(before, after) {
            let of_memory = fleet.profile_of(engine).memory(class).unwrap_or(0.0);
            for (sum, each) in [(&mut work[engine.index()], class.work), (&mut memory[engine.index()], of_memory)] {
                sum.before += rps * before * each;
                sum.growth += rps * (after - before).max(0.0) * each;
            }
        }
    }
    let mut found = Passage { frac: 1.0, engine: None };
    for engine in fleet.engine_ids() {
        let nominal = inputs.capacity_rps(fleet, engine) / (1.0 - inputs.headroom_frac);
        for sum in [work[engine.index()], memory[engine.index()]] {
            let room = (nominal * (1.0 + TOLERANCE) + TOLERANCE - sum.before).max(0.0);
            if sum.growth > room && room < found.frac * sum.growth {
                found = Passage { frac: room / sum.growth, engine: Some(engine) };
            }
        }
    }
    found
}

/// The weights `frac` of the way from `current` to `next`; legal if both are, since every rule but
/// shed's reason is convex in flows.
pub fn towards(fleet: &Fleet, current: &[RouteWeights], next: &[RouteWeights], frac: f64) -> Vec<RouteWeights> {
    let blend = |(before, after): (Option<&RouteWeights>, &RouteWeights)| {
        let flows: Vec<(EngineId, f64)> =
            flows(before, after).map(|(engine, before, after)| (engine, before + frac * (after - before))).collect();
        let served: f64 = flows.iter().map(|&(_, flow)| flow).sum();
        if served <= LEAST_WEIGHT {
            return RouteWeights { shed_frac: if after.weights.is_empty() { after.shed_frac } else { 1.0 }, ..after.clone() };
        }
        let used: Vec<(EngineId, f64)> = flows.into_iter().filter(|&(_, flow)| flow > LEAST_WEIGHT * served).collect();
        let sum: f64 = used.iter().map(|&(_, flow)| flow).sum();
        let weights = used.into_iter().map(|(engine, flow)| (engine, flow / sum)).collect();
        let shed_frac = if served > 1.0 - LEAST_WEIGHT { 0.0 } else { 1.0 - served };
        RouteWeights { cluster: after.cluster, class: after.class, shed_frac, weights }
    };
    pairs(fleet, current, next).map(blend).collect()
}

/// Every route of `next` beside the current one, if there is one.
fn pairs<'r>(
    fleet: &Fleet,
    current: &'r [RouteWeights],
    next: &'r [RouteWeights],
) -> impl Iterator<Item = (Option<&'r RouteWeights>, &'r RouteWeights)> {
    let classes = fleet.classes.len();
    let mut current_of = vec![None; fleet.clusters.len() * classes];
    for route in current {
        current_of[route.cluster.index() * classes + route.class.index()] = Some(route);
    }
    next.iter().map(move |route| (current_of[route.cluster.index() * classes + route.class.index()], route))
}

/// Shares of a route's demand, before and after, of every engine that has either; in fleet order.
fn flows(before: Option<&RouteWeights>, after: &RouteWeights) -> impl Iterator<Item = (EngineId, f64, f64)> {
    let served = |route: &RouteWeights| 1.0 - route.shed_frac;
    let mut shares: Vec<(EngineId, f64, f64)> = after.weights.iter().map(|&(e, w)| (e, 0.0, w * served(after))).collect();
    if let Some(before) = before {
        shares.extend(before.weights.iter().map(|&(engine, weight)| (engine, weight * served(before), 0.0)));
    }
    shares.sort_unstable_by_key(|&(engine, ..)| engine);
    shares.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            (kept.1, kept.2) = (kept.1 + next.1, kept.2 + next.2);
        }
        is_same
    });
    shares.into_iter()
}
