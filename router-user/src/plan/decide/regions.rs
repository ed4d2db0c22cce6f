//! Can the rest serve all demand if a region or an engine is lost? A check beside the plan, by
//! flows. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::model::{ClassId, Engine, EngineId, Fleet};

use crate::plan::problem::cooldown::Cooldown;
use crate::plan::problem::formulation::Problem;
use crate::plan::solve::max_min;
use crate::plan::wording::rate;
use crate::plan::{Inputs, NEGLIGIBLE_RPS, ROUNDING_FRAC};

/// The fleet without the engines of one region, for the present demand and without headroom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegionLoss {
    pub region: String,
    /// Demand of the whole fleet that is to be served, in requests/s.
    #[serde(default)]
    pub demand_rps: f64,
    /// Demand that would have to be shed, in requests/s.
    pub shortfall_rps: f64,
    /// Fraction by which all demand can grow before something is shed; below 0 if something is shed
    /// already.
    pub spare_frac: f64,
}

/// One entry per region that has engines, by name. Memory, budgets of detours and pins are not
/// looked at.
pub fn region_losses(fleet: &Fleet, inputs: &Inputs) -> Vec<RegionLoss> {
    let regions: BTreeSet<&str> = fleet.engines.iter().map(|engine| engine.region.as_str()).collect();
    let loss = |region: &str| {
        let left = without(fleet, inputs, |engine| engine.region == region);
        let problem = problem(fleet, &left);
        let demand_rps = problem.demands.iter().map(|demand| demand.rps).sum();
        let (shortfall_rps, spare_frac) = (shortfall_rps(&problem), max_min::growth(&problem) - 1.0);
        RegionLoss { region: region.to_owned(), demand_rps, shortfall_rps, spare_frac }
    };
    regions.into_iter().map(loss).collect()
}

/// What the rest could not serve without one more engine, in words; `None` where that loses
/// nothing. As blind as [`region_losses`].
pub fn engine_shortage(fleet: &Fleet, inputs: &Inputs, lost: EngineId) -> Option<String> {
    let name = &fleet.engines[lost.index()].name;
    let is_left = |engine: EngineId| engine != lost && inputs.ready[engine.index()] > 0;
    let is_last = |class: &ClassId| {
        let mut eligible = fleet.engine_ids().filter(|&engine| fleet.ineligible(*class, engine).is_none());
        fleet.ineligible(*class, lost).is_none() && inputs.ready[lost.index()] > 0 && !eligible.any(is_left)
    };
    let orphans: Vec<&str> = fleet.class_ids().filter(is_last).map(|class| &*fleet.classes[class.index()].name).collect();
    if !orphans.is_empty() {
        return Some(format!("without engine {name} no engine is left for {}", orphans.join(", ")));
    }
    let short_rps = |left: Inputs| shortfall_rps(&problem(fleet, &left));
    let before_rps = short_rps(without(fleet, inputs, |_| false));
    let more_rps = short_rps(without(fleet, inputs, |engine| engine.name == *name)) - before_rps;
    (more_rps > NEGLIGIBLE_RPS)
        .then(|| format!("without engine {name} {} requests/s more have no engine with room for them", rate(more_rps)))
}

/// The inputs without some engines, without headroom and pins.
fn without(fleet: &Fleet, inputs: &Inputs, is_lost: impl Fn(&Engine) -> bool) -> Inputs {
    let mut left = Inputs { headroom_frac: 0.0, pins: Vec::new(), ..inputs.clone() };
    let lost = left.ready.iter_mut().zip(&fleet.engines).filter(|(_, engine)| is_lost(engine));
    lost.for_each(|(ready, _)| *ready = 0);
    left
}

fn problem<'a>(fleet: &'a Fleet, inputs: &'a Inputs) -> Problem<'a> {
    Problem::new(fleet, inputs, None, &Cooldown::default())
}

fn shortfall_rps(problem: &Problem<'_>) -> f64 {
    let short = |served: Vec<f64>| problem.demands.iter().zip(served).map(|(demand, served)| demand.rps - served).sum();
    let shortfall_rps: f64 = max_min::served(problem).map_or(0.0, short);
    if shortfall_rps > NEGLIGIBLE_RPS { shortfall_rps } else { 0.0 }
}

impl std::fmt::Display for RegionLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { region, demand_rps, shortfall_rps, spare_frac } = self;
        if *shortfall_rps >= demand_rps * (1.0 - ROUNDING_FRAC) && *shortfall_rps > 0.0 {
            return write!(
                f,
                "without region {region} nothing can be served: the demand of {} requests/s would be shed",
                rate(*shortfall_rps)
            );
        }
        if *shortfall_rps > 0.0 {
            return write!(f, "without region {region} {} requests/s would be shed", rate(*shortfall_rps));
        }
        if *demand_rps == 0.0 {
            return write!(f, "without region {region} nothing would be shed, as there is no demand");
        }
        write!(f, "without region {region} all demand is served, and could grow by {:.1} %", spare_frac * 100.0)
    }
}
