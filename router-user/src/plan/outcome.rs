//! The outcome of planning: weights, prices and the certificate.

use crate::model::{ClassId, ClusterId, EngineId};

use super::ROUNDING_FRAC;
use super::load::Load;
use super::verify::LegalWeights;
use crate::model::RouteWeights;
use crate::plan::problem::cooldown::Reversal;

/// Status of a plan: full or partial service within capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All demand is routed within capacity.
    Optimal,
    /// Some demand is shed because capacity forces it, or a pin fills an engine beyond its
    /// capacity.
    Degraded,
}

/// The weights of a whole fleet, and their cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub status: Status,
    /// Mean cost of a served request, in ms, on the true curves: its latency, each part times its
    /// class's weight.
    pub objective_ms: f64,
    /// Mean latency of a served request (network, TTFT and all tokens), in ms, on the true curves.
    pub latency_ms: f64,
    /// One per (cluster, class), cluster by cluster.
    pub routes: Vec<Route>,
    /// One per engine of the fleet.
    pub engines: Vec<EngineLoad>,
    pub certificate: Certificate,
    /// Fraction of the demand that moves to another pool than the current weights would send it to;
    /// 0 without current weights.
    pub moved_frac: f64,
    /// The largest reversal of a recent move; `None` if the plan makes none or knows no earlier
    /// plan.
    pub reversal: Option<Reversal>,
    /// True if the plan was made without a solver. Then it is legal but not optimal, and its gap
    /// bounds the loss.
    pub is_greedy: bool,
    /// Why the optimiser failed, where this greedy plan stands in for its plan.
    pub solver_failure: Option<String>,
    /// Upper bound on every price that latency alone causes, in ms per unit of work. A higher price
    /// belongs to a request that fits only if another one is shed.
    pub price_limit_ms: f64,
    /// Duration of planning, in ms. Planning reads no clock, so it is 0 until the caller sets it.
    pub solve_ms: f64,
    /// The weights of the routes, with the proof that they are legal.
    pub(crate) legal: LegalWeights,
}

/// The weights of one cluster and class, with their prices.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    pub cluster: ClusterId,
    pub class: ClassId,
    pub demand_rps: f64,
    /// Marginal cost of one more request, in ms. It is above [`Plan::price_limit_ms`] x its work
    /// where this request or another one would be shed.
    pub price_ms: f64,
    pub shed_rps: f64,
    /// True if an operator fixed the weights.
    pub is_pinned: bool,
    /// In fleet order; engines with a weight only. The weights are > 0 and sum to 1; empty if no
    /// engine can serve the class.
    pub weights: Vec<RouteWeight>,
    /// Price of a request that moves to another engine than the current weights would send it to,
    /// in ms; 0 without current weights. It exceeds the class's own move price in a cooldown, and
    /// where the limit on movement binds.
    pub move_price_ms: f64,
    /// Part of `move_price_ms` that the limit on movement causes, in ms; 0 unless that limit binds.
    pub move_limit_price_ms: f64,
    /// Price of the detour budget, in ms, for one more request that exceeds it by the whole budget.
    pub detour_price_ms: f64,
    /// Part of the present demand that the current weights would send to each engine, in
    /// requests/s; engines without any are left out.
    pub current_rps: Vec<(EngineId, f64)>,
    /// Engines that pruning excluded from the route, because at least one of their shares would
    /// have been a sliver.
    pub pruned: Vec<EngineId>,
    /// Engines that could serve the class but exceed its round-trip cap from this cluster.
    pub too_far: Vec<EngineId>,
}

/// One engine's share of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteWeight {
    pub engine: EngineId,
    /// Fraction of the route's served requests.
    pub weight: f64,
    /// The weight in requests/s.
    pub rps: f64,
}

/// One engine under the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineLoad {
    pub engine: EngineId,
    /// First engine of its pool, which is planned as one; the engine itself if it is alone.
    pub pool: EngineId,
    /// Load, in reference requests/s; so are the next two fields.
    pub load_rps: f64,
    /// Part of the load that pins put there.
    pub pinned_rps: f64,
    /// Capacity: the load that it may be given; 0 if no replica is ready.
    pub capacity_rps: f64,
    /// Load divided by capacity; 0 without load.
    pub utilisation: f64,
    /// Composition of one unit of its work.
    pub(crate) mix: Load,
    /// Mean time of its requests in the engine, in ms. Without load, the time of a first request of
    /// mean length.
    pub latency_ms: f64,
    /// Marginal cost of one more unit of work of the same mix, without network, in ms.
    pub price_ms: f64,
    /// Part of `price_ms` that capacity alone causes: the value of one more unit of capacity, in
    /// ms.
    pub capacity_price_ms: f64,
    /// KV memory that its requests take, in units of load and full at the same capacity; 0 where
    /// the size of the cache is unknown.
    pub memory_rps: f64,
    /// Value of one more unit of KV memory, in ms.
    pub memory_price_ms: f64,
    /// Marginal cost of one more request of each class, without network and detour, in ms.
    pub class_price_ms: Vec<f64>,
}

/// Certificate: a proof of a plan's quality that does not depend on the solver; docs/model.md,
/// section 5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certificate {
    /// Primal residual: the largest violation of a row or a bound of the linear program, in
    /// requests/s.
    pub residual_rps: f64,
    /// Dual residual: the largest reduced cost of the wrong sign, in ms.
    pub reduced_cost_ms: f64,
    /// Relative optimality gap: an upper bound on the plan's cost over the best of any weights on
    /// the true curves, from a Lagrangian bound at the plan's prices.
    pub gap_frac: f64,
    /// Price of stability: an upper bound on the plan's latency over the least of any weights if
    /// moving were free, as a fraction.
    pub stability_frac: f64,
    /// Error in the cost that comes from fixing the mixes of the engines, in ms per served request;
    /// 0 where classes differ in work only.
    pub mix_error_ms: f64,
    /// Most linear programs that one component took, and the number of components that took any.
    pub rounds: u32,
    pub components: u32,
}

impl EngineLoad {
    /// True if pins alone fill the engine, so that no capacity is left to plan with.
    pub fn is_filled_by_pins(&self) -> bool {
        self.pinned_rps > 0.0 && self.pinned_rps >= self.capacity_rps * (1.0 - ROUNDING_FRAC)
    }
}

impl Plan {
    /// The weights, with the proof that they are legal under the plan's inputs.
    pub fn legal(&self) -> &LegalWeights {
        &self.legal
    }

    /// The weights alone.
    pub fn weights(&self) -> Vec<RouteWeights> {
        self.legal.routes().to_vec()
    }
}

/// The weights of `routes`.
pub(crate) fn weights(routes: &[Route]) -> Vec<RouteWeights> {
    routes
        .iter()
        .map(|route| RouteWeights {
            cluster: route.cluster,
            class: route.class,
            shed_frac: if route.demand_rps > 0.0 { route.shed_rps / route.demand_rps } else { 0.0 },
            weights: route.weights.iter().map(|share| (share.engine, share.weight)).collect(),
        })
        .collect()
}
