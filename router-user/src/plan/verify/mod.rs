//! The check of a plan, independent of the solver.

pub mod check;
