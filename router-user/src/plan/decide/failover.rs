//! Failover weights: the weights without one engine or one region, computed in advance. Pure.
//!
//! A data plane that finds an engine down cannot wait for a plan, and perhaps no controller is left
//! to make one. So each plan comes with the weights without each loaded engine and without each
//! region. The other flows stay. The demand of the lost engines goes to the cheapest engines with
//! room; other flows move only if there is no room ([`crate::plan::solve::greedy`]). Demand without
//! capacity is shed. The weights pass the same check as a plan.

use std::collections::BTreeMap;

use crate::model::{EngineId, Fleet};

use crate::plan::problem::cooldown::Cooldown;
use crate::plan::problem::formulation::Problem;
use crate::plan::solve::optimizer::plan_around;
use crate::plan::{Inputs, NEGLIGIBLE_RPS, RouteWeights};

/// Largest number of losses with failover weights, and largest fleet with failover weights for
/// single engines. A larger fleet has many engines of a kind: the ranks of a slot replace a lost
/// one, and only the loss of a region needs failover weights.
pub const LOSSES_MOST: usize = 64;

/// Largest amount of work over all losses, in flows: a tenth of a second or two. The smallest
/// losses beyond it are left out.
const WORK_MOST: usize = 1_000_000;

/// Most failover weights of a snapshot for each weight of the plan itself, so that the size of a
/// snapshot stays bounded.
const GROWTH_MOST: usize = 8;

/// Number of failover weights that is always allowed: less than a megabyte of JSON.
const WEIGHTS_LEAST: usize = 16_384;

/// Smallest difference of a share, as a fraction of the route, that counts as a change.
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

/// The losses to prepare for: the greatest planned load first, then in fleet order.
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

/// `None` if no route has another engine.
fn without(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights], lost: Vec<EngineId>) -> Option<Failover> {
    let mut inputs = inputs.clone();
    lost.iter().for_each(|engine| inputs.ready[engine.index()] = 0);
    // Weights that fail the check are left out.
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
