//! Regression of convex, non-decreasing curves: [`convex`] fits the mean by [`nnls`], [`quantile`]
//! fits quantiles by a linear program, and [`prior`] continues the points by physics where no load
//! was measured.

pub(crate) mod convex;
pub(crate) mod nnls;
pub(crate) mod prior;
pub(crate) mod quantile;
