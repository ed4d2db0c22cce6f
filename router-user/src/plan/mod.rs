//! From demand, distances and latency profiles to weights: the optimiser and its proof.
//!
//! ```text
//! Fleet + Inputs -> problem -> solve (HiGHS) -> check -> Plan -> planner: publish or keep?
//!                                                         |----> explain, report
//! ```
//!
//! Everything but `solve` is pure: no IO, no clock, no randomness. docs/model.md has the mathematics.

pub mod alternates;
mod assemble;
pub mod bill;
mod bursts;
pub mod check;
mod engine_cost;
mod evaluate;
pub mod explain;
mod explain_text;
mod fair;
mod frame;
mod greedy;
mod inputs;
mod limits;
mod linear;
mod load;
mod optimise;
mod outcome;
pub mod planner;
mod pools;
mod problem;
pub mod regions;
pub mod report;
mod rest;
mod select;
mod solve;
mod start;
pub mod steady;
pub mod transition;
pub mod whatif;

pub use evaluate::{EngineEvaluation, Evaluation, evaluate, nearest};
pub use inputs::{InputError, Inputs, MOVE_LIMIT_FRAC, Pin};
pub use optimise::{Optimiser, PlanError, plan, plan_greedily};
pub use outcome::{Certificate, EngineLoad, Plan, Route, RouteWeight, RouteWeights, Status};
pub use rest::Turn;
pub use solve::SolveError;

/// Demand that is none to the program, in requests/s: one request in twelve days, and ten times the solver's own tolerance.
pub const NEGLIGIBLE_RPS: f64 = 1e-6;

/// Smallest share of an amount that is not the solver's rounding.
const ROUNDING_FRAC: f64 = 1e-7;
