//! What weights become when engines are lost, worked out before it happens. Pure.
//!
//! A data plane that finds an engine gone cannot wait for a plan, and there may be nobody left to
//! make one. So for each engine that carries load, and for each region, the weights without it are
//! made beside the plan: flows stay where they are, what the lost engines served is poured where
//! one more request costs least and there is room, and only where there is none do others make way
//! ([`crate::plan::solve::greedy`]). They are checked as every plan is; what no capacity is left
//! for is shed.

use std::collections::BTreeMap;

use crate::model::{EngineId, Fleet};

use crate::plan::problem::cooldown::Cooldown;
use crate::plan::problem::formulation::Problem;
use crate::plan::solve::optimizer::plan_around;
use crate::plan::{Inputs, NEGLIGIBLE_RPS, RouteWeights};

/// Most losses that are prepared for, and most engines for which single ones are: larger fleets
/// lose one engine of many that are alike, which the ranks of a slot bear, and are prepared for the
/// loss of regions only.
pub const LOSSES_MOST: usize = 64;

/// Most work, in flows looked at over all losses: a tenth of a second or two. Losses beyond it, the
/// smallest, are left out.
const WORK_MOST: usize = 1_000_000;

/// Most failover weights of a snapshot for each weight of the plan itself, so that the size of a
/// snapshot stays bounded.
const GROWTH_MOST: usize = 8;

/// Number of failover weights that is always allowed: less than a megabyte of JSON.
const WEIGHTS_LEAST: usize = 16_384;

/// A share of a route that differs by less has not changed.
const CHANGED: f64 = 1e-4;

/// The weights after one loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Failover {
    /// In fleet order; never empty.
    pub lost: Vec<EngineId>,
    /// The routes that change; never empty. None has a weight on what is lost, and each has
    /// weights.
    pub routes: Vec<RouteWeights>,
}

/// The failover weights for `weights`, which are legal for `inputs`; the loss with the greatest
/// planned load first. Pinned routes have none, because they are the operator's. Routes that only
/// the lost engines can serve have none either.
pub fn failovers(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights]) -> Vec<Failover> {
    let flows = Problem::new(fleet, inputs, Some(weights), &Cooldown::default()).edges.len();
    let work_most = (WORK_MOST / flows.max(1)).min(LOSSES_MOST);
    let own: usize = weights.iter().map(|route| route.weights.len()).sum();
    let mut room = WEIGHTS_LEAST.max(GROWTH_MOST * own);
    let mut found = Vec::new();
    for lost in losses(fleet, inputs, weights).into_iter().take(work_most) {
        let Some(failover) = without(fleet, inputs, weights, lost) else { continue };
        let size: usize = failover.routes.iter().map(|route| route.weights.len()).sum();
        if size > room {
            break;
        }
        room -= size;
        found.push(failover);
    }
    found
}

/// What to prepare for: the greatest planned load first, then in fleet order.
fn losses(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights]) -> Vec<Vec<EngineId>> {
    let mut load_rps = vec![0.0; fleet.engines.len()];
    for route in weights {
        let served = inputs.demand(route.cluster, route.class) * (1.0 - route.shed_frac);
        route.weights.iter().for_each(|&(engine, weight)| load_rps[engine.index()] += served * weight);
    }
    let used: Vec<EngineId> =
        fleet.engine_ids().filter(|e| load_rps[e.index()] > NEGLIGIBLE_RPS && inputs.ready[e.index()] > 0).collect();
    let mut regions: BTreeMap<&str, Vec<EngineId>> = BTreeMap::new();
    for engine in fleet.engine_ids() {
        regions.entry(&fleet.engines[engine.index()].region).or_default().push(engine);
    }
    let mut losses: Vec<Vec<EngineId>> = regions.into_values().filter(|region| region.len() > 1).collect();
    if used.len() <= LOSSES_MOST {
        losses.extend(used.into_iter().map(|engine| vec![engine]));
    }
    let load = |lost: &[EngineId]| lost.iter().map(|engine| load_rps[engine.index()]).sum::<f64>();
    losses.retain(|lost| load(lost) > NEGLIGIBLE_RPS);
    losses.sort_by(|a, b| load(b).total_cmp(&load(a)).then_with(|| a.cmp(b)));
    losses
}

/// `None` where nothing can be done: no route has anywhere else to go.
fn without(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights], lost: Vec<EngineId>) -> Option<Failover> {
    let mut inputs = inputs.clone();
    lost.iter().for_each(|engine| inputs.ready[engine.index()] = 0);
    // A plan that fails its check is as good as none.
    let plan = plan_around(fleet, &inputs, weights).ok()?;
    let changed = |new: &RouteWeights| {
        let Some(old) = weights.iter().find(|old| (old.cluster, old.class) == (new.cluster, new.class)) else { return false };
        old.weights.iter().any(|&(engine, weight)| weight > 0.0 && lost.contains(&engine))
            || (new.shed_frac - old.shed_frac).abs() > CHANGED
            || old.changes_to(new).any(|(_, by)| by.abs() > CHANGED)
    };
    let is_pinned = |route: &RouteWeights| inputs.pin(route.cluster, route.class).is_some();
    let routes: Vec<RouteWeights> =
        plan.weights().into_iter().filter(|route| !route.weights.is_empty() && !is_pinned(route) && changed(route)).collect();
    (!routes.is_empty()).then_some(Failover { lost, routes })
}
