//! Solving the planning problem.
//!
//! `optimizer` runs the rounds; `round` holds the result of one. `highs` is the only file of the
//! planner that names HiGHS; `columns` (column generation) and `warm_start` (initial basis) make
//! the program small and start it from the current weights. `max_min` divides shed fairly;
//! `memory_limits` does so under KV memory limits, and finds the excess of detour budgets. `greedy`
//! plans without a solver, and `fallback` uses that plan where the optimiser fails. `assemble`
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
