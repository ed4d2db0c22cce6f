//! What a plan says: weights, prices and the certificate that comes with them.

use crate::model::{ClassId, ClusterId, EngineId};

use super::ROUNDING_FRAC;
use super::load::Load;
use super::verify::LegalWeights;
use crate::model::RouteWeights;
use crate::plan::problem::cooldown::Reversal;

/// How far a plan got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All demand is routed within capacity, at least cost.
    Optimal,
    /// Some demand is shed, because capacity forces it, or a pin fills an engine beyond its
    /// capacity.
    Degraded,
}

/// The weights of a whole fleet, and what they cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub status: Status,
    /// What a served request costs in the mean, in ms, on the true curves: its latency, each part
    /// times its class's weight.
    pub objective_ms: f64,
    /// Mean latency of a served request (network, TTFT and all tokens), in ms, on the true curves.
    pub latency_ms: f64,
    /// One per (cluster, class), cluster by cluster.
    pub routes: Vec<Route>,
    /// One per engine of the fleet.
    pub engines: Vec<EngineLoad>,
    pub certificate: Certificate,
    /// Share of the demand that goes elsewhere than the held weights would send it; 0 where none
    /// are held.
    pub moved_frac: f64,
    /// The largest change of a weight that has just gone the other way; `None` where no plan before
    /// it is known.
    pub turn: Option<Reversal>,
    /// Whether it was made without a solver, so that it is legal but not the best: its gap says by
    /// how much at most.
    pub is_greedy: bool,
    /// Why the optimiser has no plan, where this greedy plan stands in for one that failed.
    pub solver_failure: Option<String>,
    /// No price that latency alone makes is above this, in ms per unit of work: a higher one
    /// belongs to a request that only fits if another is shed.
    pub price_limit_ms: f64,
    /// Time it took, in ms: 0 until whoever called for the plan sets it, as planning itself reads
    /// no clock.
    pub solve_ms: f64,
    /// The weights of the routes, with the proof that they are legal.
    pub(crate) legal: LegalWeights,
}

/// Where one cluster sends one class.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    pub cluster: ClusterId,
    pub class: ClassId,
    pub demand_rps: f64,
    /// Marginal cost of one more request, in ms; above [`Plan::price_limit_ms`] x its work where it
    /// or another would have to be shed.
    pub price_ms: f64,
    pub shed_rps: f64,
    /// Whether an operator fixed the weights.
    pub is_pinned: bool,
    /// In fleet order, only engines with a weight. The weights are > 0 and sum to 1; empty if no
    /// engine can serve the class.
    pub weights: Vec<RouteWeight>,
    /// What a request costs in ms that goes elsewhere than the held weights would send it; 0 where
    /// none are held. Above the class's own price where the limit of movement binds.
    pub move_price_ms: f64,
    /// Part of it that is due to the limit of movement, in ms: 0 unless that binds.
    pub move_limit_price_ms: f64,
    /// What one more request that exceeds its cluster's budget of detours by the whole budget costs
    /// for that, in ms.
    pub detour_price_ms: f64,
    /// What the held weights would send of the present demand, in requests/s; engines without any
    /// are left out.
    pub held_rps: Vec<(EngineId, f64)>,
    /// Engines kept out because the share of one of them would have been too small to be worth a
    /// way of its own.
    pub pruned: Vec<EngineId>,
    /// Engines that may serve the class but for their distance from this cluster.
    pub too_far: Vec<EngineId>,
}

/// One engine's share of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteWeight {
    pub engine: EngineId,
    /// Share of what the route serves.
    pub weight: f64,
    /// The same in requests/s.
    pub rps: f64,
}

/// One engine under the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineLoad {
    pub engine: EngineId,
    /// The first of the engines it was planned as one with; itself where it is the only one.
    pub pool: EngineId,
    /// Work it is given per second, in reference requests/s; so are the three after it.
    pub load_rps: f64,
    /// The part of it that operators have pinned there.
    pub pinned_rps: f64,
    /// Load it may be given; 0 when no replica is ready.
    pub capacity_rps: f64,
    /// Load by capacity; 0 without load.
    pub utilisation: f64,
    /// What a unit of its work consists of.
    pub(crate) mix: Load,
    /// Mean time its requests spend in it, in ms; of an idle engine, what a first request of mean
    /// length would.
    pub latency_ms: f64,
    /// Marginal cost of one more unit of work like what it has, network apart, in ms.
    pub price_ms: f64,
    /// The part of it that is due to capacity alone: the worth of one more unit of capacity, in ms.
    pub capacity_price_ms: f64,
    /// KV memory that its requests take, in the unit of the load, of the same capacity; 0 where the
    /// size of the cache is not known.
    pub memory_rps: f64,
    /// The worth of one more unit of it, in ms.
    pub memory_price_ms: f64,
    /// Marginal cost of one more request of each class, network and detour apart, in ms.
    pub class_price_ms: Vec<f64>,
}

/// Proof of a plan's quality that does not rest on the solver's word; docs/model.md, section 5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certificate {
    /// Largest amount by which a row or a bound of the linear program is missed, in requests/s.
    pub residual_rps: f64,
    /// Largest amount by which a reduced cost has the wrong sign, in ms.
    pub reduced_cost_ms: f64,
    /// The plan's cost over the best any weights could reach on the true curves, as a share; a
    /// bound, computed from the prices.
    pub gap_frac: f64,
    /// Price of stability: the plan's latency over the least that any weights could reach if moving
    /// were free, as a share; a bound.
    pub stability_frac: f64,
    /// What freezing the engines' mixes of requests leaves wrong in the cost, in ms per served
    /// request; 0 where classes differ in nothing but the amount of work.
    pub mix_error_ms: f64,
    /// Linear programs solved, and independent parts of the fleet they were solved for.
    pub rounds: u32,
    pub components: u32,
}

impl EngineLoad {
    /// Whether pins alone take all it may be given, so that nothing is left to plan with.
    pub fn is_filled_by_pins(&self) -> bool {
        self.pinned_rps > 0.0 && self.pinned_rps >= self.capacity_rps * (1.0 - ROUNDING_FRAC)
    }
}

impl Plan {
    /// The weights, with the proof that they are legal under the inputs of the plan.
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
