//! One solved round of a component, and the errors of planning.

use thiserror::Error;

use crate::plan::inputs::InputError;
use crate::plan::problem::formulation::Problem;
use crate::plan::problem::linearization::{Iterate, Linearization};
use crate::plan::solve::highs::SolveError;
use crate::plan::verify::Violation;
use crate::plan::verify::certificate::{Gap, Kkt};

/// Relative gap at which the rounds end: small enough that prices agree with the slopes of the true
/// curves to a tenth of a millisecond.
pub(crate) const GAP_GOAL_FRAC: f64 = 1e-9;

/// Part of each decided shed that the program may still serve or shed, in requests/s, so that the
/// duals of the program give the price of capacity. It is far above the solver's tolerance and far
/// below anything measurable.
pub(crate) const SHED_LEFT_RPS: f64 = 2.0 * crate::plan::NEGLIGIBLE_RPS;

/// Why planning failed. Demand above capacity is no error: it is planned as shed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    #[error("inputs are not of this fleet: {0}")]
    Input(#[from] InputError),
    #[error(transparent)]
    Solve(#[from] SolveError),
    #[error("plan failed its check: {0}")]
    Check(#[from] Violation),
}

/// One solved and checked round.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) linearization: Linearization,
    pub(crate) iterate: Iterate,
    pub(crate) kkt: Kkt,
    pub(crate) gap: Gap,
    /// Cost on the true curves, shed and movement included, and the shed part of it; both in ms x
    /// requests/s.
    pub(crate) cost: f64,
    pub(crate) shed: f64,
}

impl Round {
    pub(crate) fn of(problem: &Problem<'_>, linearization: Linearization, iterate: Iterate, kkt: Kkt, gap: Gap) -> Self {
        let (cost, shed) = (problem.cost(&iterate), problem.shed_cost(&iterate));
        Self { linearization, iterate, kkt, gap, cost, shed }
    }

    /// True if this round costs less than `other`, or costs the same and its prices prove a smaller
    /// gap.
    pub(crate) fn is_better_than(&self, other: &Self) -> bool {
        let same = GAP_GOAL_FRAC * other.gap.latency.abs();
        let is_tighter = self.gap.excess.abs() < other.gap.excess.abs();
        self.cost < other.cost - same || (self.cost <= other.cost + same && is_tighter)
    }
}

/// A solved component: a part of the fleet that shares nothing with the rest.
#[derive(Debug)]
pub(crate) struct Component<'a> {
    pub(crate) problem: Problem<'a>,
    pub(crate) round: Round,
    pub(crate) rounds: u32,
}
