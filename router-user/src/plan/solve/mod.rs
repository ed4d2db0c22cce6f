//! Solving the planning problem.
//!
//! `optimizer` runs the rounds; `highs` is the only file of the planner that names HiGHS; `columns`
//! and `warm_start` make the program small and start it from the held weights; `max_min` shares out
//! what cannot be served; `memory_limits` handles KV memory and detour budgets; `greedy` is the
//! plan without a solver, and `fallback` lets it stand in where the optimiser fails; `assemble`
//! turns a solution back into weights.

pub(crate) mod assemble;
pub(crate) mod columns;
pub(crate) mod fallback;
pub(crate) mod greedy;
pub(crate) mod highs;
pub(crate) mod max_min;
pub(crate) mod memory_limits;
pub(crate) mod optimizer;
pub(crate) mod round;
pub(crate) mod warm_start;
