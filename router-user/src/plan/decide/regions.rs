//! Can the rest serve all demand if a region is lost? A check beside the plan, by flows. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::model::Fleet;

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
    let without = |region: &str| {
        let mut left = Inputs { headroom_frac: 0.0, pins: Vec::new(), ..inputs.clone() };
        for (ready, engine) in left.ready.iter_mut().zip(&fleet.engines) {
            if engine.region == region {
                *ready = 0;
            }
        }
        let problem = Problem::new(fleet, &left, None, &Cooldown::default());
        let short = |served: Vec<f64>| problem.demands.iter().zip(served).map(|(demand, served)| demand.rps - served).sum();
        let shortfall_rps: f64 = max_min::served(&problem).map_or(0.0, short);
        let shortfall_rps = if shortfall_rps > NEGLIGIBLE_RPS { shortfall_rps } else { 0.0 };
        let demand_rps = problem.demands.iter().map(|demand| demand.rps).sum();
        RegionLoss { region: region.to_owned(), demand_rps, shortfall_rps, spare_frac: max_min::growth(&problem) - 1.0 }
    };
    regions.into_iter().map(without).collect()
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
