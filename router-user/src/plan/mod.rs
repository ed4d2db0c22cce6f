//! From demand, distances and latency profiles to weights: the optimiser and its proof.
//!
//! Read the rooms in this order:
//!
//! 1. `inputs`: the facts that a plan is made for; `load`, `engine_cost`, `bursts`: latency of an
//!    engine at a load; `evaluate`: expected latency of a fleet under given weights.
//! 2. [`problem`]: fleet and inputs become a linear program.
//! 3. [`verify`]: the independent check that weights are legal and optimal.
//! 4. [`solve`]: HiGHS, the rounds around it, and the greedy plan that stands in.
//! 5. [`decide`]: whether to publish, in how many steps, and the weights for lost engines.
//! 6. [`explain`]: why each weight is what it is.
//!
//! The mathematics is in docs/model.md.

mod bursts;
pub mod decide;
mod engine_cost;
mod evaluate;
pub mod explain;
mod inputs;
mod load;
mod outcome;
pub mod problem;
pub mod solve;
mod tolerance;
pub mod verify;
mod wording;

pub use crate::model::RouteWeights;
pub use evaluate::{EngineEvaluation, Evaluation, evaluate, nearest};
pub use inputs::{InputError, Inputs, MOVE_LIMIT_FRAC, Pin};
pub use outcome::{Certificate, EngineLoad, Plan, Route, RouteWeight, Status};
pub use problem::cooldown::Reversal;
pub use solve::fallback::plan_or_greedy;
pub use solve::highs::SolveError;
pub use solve::optimizer::{Optimiser, plan, plan_greedily};
pub use solve::round::PlanError;
pub use tolerance::NEGLIGIBLE_RPS;
pub(crate) use tolerance::ROUNDING_FRAC;
