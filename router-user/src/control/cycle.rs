//! One cycle of the control plane without its IO: plan, decide, write down. The controller and the
//! simulator both run it.

use std::panic::catch_unwind;
use std::time::Duration;

use thiserror::Error;

use crate::model::Fleet;
use crate::plan::decide::failover::{Failover, failovers};
use crate::plan::decide::gate::{Decision, compare};
use crate::plan::decide::regions::{RegionLoss, region_losses};
use crate::plan::solve::assemble::with_weights;
use crate::plan::verify::{self, Violation};
use crate::plan::{Inputs, Optimiser, Plan, PlanError, RouteWeights, plan_greedily};
use crate::publish::build;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::StoreError;

/// The optimiser, which remembers recent moves, and the greedy plan that replaces it when it fails.
#[derive(Debug)]
pub struct Planning {
    optimiser: Optimiser,
}

/// Why a cycle published nothing.
#[derive(Debug, Error)]
pub enum CycleError {
    #[error("cannot take over from the last leader: {0}")]
    TakeOver(StoreError),
    #[error("no plan: {0}")]
    Plan(#[from] PlanError),
    #[error("the planner thread is gone")]
    Planner,
    #[error("cannot publish: {0}")]
    Publish(StoreError),
}

/// The result of a cycle.
#[derive(Clone, Debug)]
pub struct Conclusion {
    pub decision: Decision,
    /// The plan to be published, and its snapshot, still without a number, a time and failover
    /// weights; `None` if the current weights stay.
    pub published: Option<(Plan, Snapshot)>,
    /// Expected mean latency under the weights after this decision, in ms.
    pub expected_ms: f64,
}

impl Planning {
    /// `budget` is the time that the solves of one plan may take.
    pub fn new(budget: Duration) -> Self {
        Self { optimiser: Optimiser::new(budget) }
    }

    /// Plans for `inputs` from the `current` weights. Where the optimiser fails, the plan is one
    /// that was made without it.
    ///
    /// Errors: why there is no plan at all.
    pub fn plan(&mut self, fleet: &Fleet, inputs: &Inputs, current: Option<&[RouteWeights]>) -> Result<Plan, CycleError> {
        let plan = self.optimiser.plan_or_greedy(fleet, inputs, current)?;
        if let Some(failure) = &plan.solver_failure {
            tracing::error!(failure, "the optimiser failed; the greedy plan stands in");
        }
        Ok(plan)
    }
}

/// The failover weights of `weights`; none if that fails, because a plan is worth publishing
/// without them.
pub fn failover_weights(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights]) -> Vec<Failover> {
    catch_unwind(|| failovers(fleet, inputs, weights)).unwrap_or_else(|_| {
        tracing::error!("making failover weights panicked; publishing without");
        Vec::new()
    })
}

/// The shed demand after the loss of each region; empty if the check fails.
pub(crate) fn lost_regions(fleet: &Fleet, inputs: &Inputs) -> Vec<RegionLoss> {
    catch_unwind(|| region_losses(fleet, inputs)).unwrap_or_else(|_| {
        tracing::error!("the check of lost regions panicked");
        Vec::new()
    })
}

/// Decides between `plan` and the `current` weights, both under the inputs that the plan was made
/// for.
pub fn conclude(fleet: &Fleet, inputs: &Inputs, current: Option<&[RouteWeights]>, plan: &Plan) -> Conclusion {
    let current = current.map(|current| verify::legal(fleet, inputs, current));
    let decision = compare(fleet, inputs, current.as_ref(), plan);
    let published = decision.publishes(plan).map(|published| {
        let content = build::snapshot(fleet, &published, 0, 0, &decision.reason());
        (published.into_owned(), content)
    });
    // Only legal weights may stay.
    let current_ms = || current.and_then(Result::ok).map_or(0.0, |current| current.evaluation().mean_ms);
    let expected_ms = published.as_ref().map_or_else(current_ms, |(plan, _)| plan.latency_ms);
    Conclusion { decision, published, expected_ms }
}

/// The `current` weights with routes for the clusters and classes that they lack, from a plan that
/// leaves the others where they are. `None` where there is no such plan.
pub fn completed(fleet: &Fleet, inputs: &Inputs, mut current: Vec<RouteWeights>) -> Option<Vec<RouteWeights>> {
    if current.len() < fleet.clusters.len() * fleet.classes.len() {
        let around = plan_greedily(fleet, inputs, Some(&current)).ok()?;
        let is_missing = |route: &RouteWeights| {
            !current.iter().any(|current| (current.cluster, current.class) == (route.cluster, route.class))
        };
        let missing: Vec<RouteWeights> = around.weights().into_iter().filter(is_missing).collect();
        current.extend(missing);
        current.sort_by_key(|route| (route.cluster, route.class));
    }
    Some(current)
}

/// The `current` weights, one for each route of `plan`, as a plan and a snapshot of their own: for
/// a fleet that has changed since they were published. The snapshot has no number, time and
/// failover weights yet.
///
/// Errors: the rule that the weights break.
pub fn restated(
    fleet: &Fleet,
    inputs: &Inputs,
    current: &[RouteWeights],
    plan: &Plan,
    reason: &str,
) -> Result<(Plan, Snapshot), Violation> {
    let restated = with_weights(plan, verify::legal(fleet, inputs, current)?);
    let content = build::snapshot(fleet, &restated, 0, 0, reason);
    Ok((restated, content))
}
