//! The fallback: the optimiser's plan, or the greedy plan where the optimiser fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::model::Fleet;

use crate::plan::{Inputs, Plan, RouteWeights};

use super::optimizer::{BUDGET, Optimiser, plan_greedily};
use super::round::PlanError;

/// Plans the weights of `fleet` for `inputs` without a history of cooldowns. Where the optimiser
/// fails, it returns the greedy plan.
///
/// Errors: as [`Optimiser::plan_or_greedy`].
pub fn plan_or_greedy(fleet: &Fleet, inputs: &Inputs, current: Option<&[RouteWeights]>) -> Result<Plan, PlanError> {
    Optimiser::new(BUDGET).plan_or_greedy(fleet, inputs, current)
}

impl Optimiser {
    /// Plans as [`Optimiser::plan`]. Where that fails or panics, it returns the greedy plan, and
    /// [`Plan::solver_failure`] gives the reason.
    ///
    /// Errors: [`PlanError::Input`] for inputs of another fleet, [`PlanError::Check`] if not even
    /// the greedy plan is legal.
    pub fn plan_or_greedy(
        &mut self,
        fleet: &Fleet,
        inputs: &Inputs,
        current: Option<&[RouteWeights]>,
    ) -> Result<Plan, PlanError> {
        let optimised = catch_unwind(AssertUnwindSafe(|| self.plan(fleet, inputs, current)));
        let failure = match optimised {
            Ok(Ok(plan)) => return Ok(plan),
            Ok(Err(error @ PlanError::Input(_))) => return Err(error),
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                // The panic may have left the cooldowns half written.
                self.forget();
                "the optimiser panicked".to_owned()
            }
        };
        Ok(Plan { solver_failure: Some(failure), ..plan_greedily(fleet, inputs, current)? })
    }
}
