//! Tolerances below which the planner ignores an amount.

/// Demand below this rate is treated as zero, in requests/s: one request in twelve days, and ten
/// times the solver's own feasibility tolerance.
pub const NEGLIGIBLE_RPS: f64 = 1e-6;

/// Shares of an amount below this fraction are the solver's rounding.
pub(crate) const ROUNDING_FRAC: f64 = 1e-7;
