//! Regression of convex, non-decreasing curves.

pub(crate) mod convex;
pub(crate) mod nnls;
pub(crate) mod prior;
pub(crate) mod quantile;
