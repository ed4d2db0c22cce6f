//! Plans against independent oracles and laws, on fleets made by hand and by chance.
//!
//! A test on random fleets names the seed of the fleet that fails; `ILB_SEED=N` replays it, and
//! `ILB_SEEDS=N` takes N times as many fleets.
//!
//! What the tests use:
//!
//! - `fleet`: fleets built by hand
//! - `flow`: largest and fairest flows from demands to engines, with nothing of the planner
//! - `oracle`: the optimum of small fleets with one class, by exhaustive search
//! - `exact`: the optimum of whole fleets with one output length, by convex-cost flow
//!
//! The tests:
//!
//! - `small_fleets`: plans whose answer is known, or found by exhaustive search
//! - `laws`: laws that every plan obeys, and the random fleets that other modules use too
//! - `optimum`: plans cost no more than the exact optimum and the gap that they admit
//! - `lp`: work, weights of latency, distance caps, memory and detour budgets in the linear program
//! - `limits`: laws of memory and detour budgets on random fleets
//! - `rare`: demands that lie far apart
//! - `degenerate`: odd fleets never get an illegal plan
//! - `degraded`: least shed, lowest priorities first, fair within a priority
//! - `check`: the rules of legal weights, broken one at a time
//! - `decision`: the reasons for which current weights are replaced or kept
//! - `churn`: current weights stay unless leaving them is worth its cost
//! - `rollout`: steps from current weights to new ones, and the check for lost regions
//! - `failover`: laws of the weights that are carried for a lost engine or region
//! - `whatif`: changes as text, their effects, and the messages for changes that cannot be made
//! - `text`: golden texts, and the JSON keys that others may count on

mod check;
mod churn;
mod decision;
mod degenerate;
mod degraded;
mod exact;
mod failover;
pub(crate) mod fleet;
mod flow;
pub(crate) mod laws;
mod limits;
mod lp;
mod optimum;
mod oracle;
mod rare;
mod rollout;
mod small_fleets;
mod text;
mod whatif;
