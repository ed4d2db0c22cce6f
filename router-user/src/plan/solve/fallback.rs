//! A plan in every case: the optimiser's, or else the greedy one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::model::Fleet;

use crate::plan::{Inputs, Plan, RouteWeights};

use super::optimizer::{BUDGET, Optimiser, plan_greedily};
use super::round::PlanError;

/// Plans the weights of `fleet` for `inputs` from nothing; where the optimiser fails, the greedy
/// plan stands in.
///
/// Errors: as [`Optimiser::plan_or_greedy`].
pub fn plan_or_greedy(fleet: &Fleet, inputs: &Inputs, held: Option<&[RouteWeights]>) -> Result<Plan, PlanError> {
    Optimiser::new(BUDGET).plan_or_greedy(fleet, inputs, held)
}

impl Optimiser {
    /// Plans as [`Optimiser::plan`]; where that fails or panics, the greedy plan stands in, and
    /// [`Plan::solver_failure`] says why.
    ///
    /// Errors: [`PlanError::Input`] for inputs of another fleet, [`PlanError::Check`] if not even
    /// the greedy plan is legal.
    pub fn plan_or_greedy(&mut self, fleet: &Fleet, inputs: &Inputs, held: Option<&[RouteWeights]>) -> Result<Plan, PlanError> {
        let optimised = catch_unwind(AssertUnwindSafe(|| self.plan(fleet, inputs, held)));
        let failure = match optimised {
            Ok(Ok(plan)) => return Ok(plan),
            Ok(Err(error @ PlanError::Input(_))) => return Err(error),
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                // Its memory may be half written.
                self.forget();
                "the optimiser panicked".to_owned()
            }
        };
        Ok(Plan { solver_failure: Some(failure), ..plan_greedily(fleet, inputs, held)? })
    }
}
