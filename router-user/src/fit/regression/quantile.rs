//! Quantiles of noisy points as convex curves: pinball loss over the hinges of `regression`, a
//! linear program for HiGHS.
//!
//! Only this file and `plan/solve` call HiGHS. A quantile is drawn and never planned with, so its
//! program needs no certificate.

use std::num::NonZeroU32;

use highs::{HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};
use thiserror::Error;

use crate::fit::regression::convex::{Basis, Fitted, Point};

/// Most points in one linear program; of more, every second, third, ... in order of load is taken.
/// Quantiles need no more, and the time stays below a second.
const POINTS_MAX: usize = 2_000;

/// Longest time for one linear program, in s: 20 times what [`POINTS_MAX`] points take.
const BUDGET_S: f64 = 20.0;

/// The solver gave no quantile.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the solver of the quantile {share} stopped with status {status}, wanted an optimal point within {BUDGET_S} s")]
pub struct QuantileError {
    pub share: String,
    pub status: String,
}

/// The curve with a `share` of the points below it. A point counts by its `scale`, the inverse of
/// its spread.
pub(crate) fn quantile(points: &[Point], scales: &[f64], basis: &Basis, share: f64) -> Result<Fitted, QuantileError> {
    let (points, scales) = thinned(points, scales);
    let mut problem = RowProblem::new();
    let width = basis.columns(&[], &[]).len();
    let hinges: Vec<_> = (0..width).map(|_| problem.add_column(0.0, 0.0..)).collect();
    for (point, scale) in points.iter().zip(&scales) {
        let above = problem.add_column(share, 0.0..);
        let below = problem.add_column(1.0 - share, 0.0..);
        let features = hinges.iter().copied().zip(basis.features(point.load).map(|f| f * scale));
        let value = point.value * scale;
        problem.add_row(value..=value, features.chain([(above, 1.0), (below, -1.0)]));
    }
    let failed = |status: String| QuantileError { share: format!("{:.0} %", 100.0 * share), status };
    let mut model = problem.try_optimise(Sense::Minimise).map_err(|status| failed(format!("{status:?}")))?;
    model.make_quiet();
    model.set_threads(NonZeroU32::MIN);
    model.try_set_option("time_limit", BUDGET_S).map_err(|error| failed(error.to_string()))?;
    let solved = model.try_solve().map_err(|status| failed(format!("{status:?}")))?;
    let (status, primal) = (solved.status(), solved.primal_solution_status());
    if status != HighsModelStatus::Optimal || primal != HighsSolutionStatus::Feasible {
        return Err(failed(format!("{status:?}, {primal:?} point")));
    }
    let weights = solved.get_solution().columns()[..width].iter().map(|weight| weight.max(0.0)).collect();
    Ok(Fitted::new(basis.clone(), weights))
}

fn thinned(points: &[Point], scales: &[f64]) -> (Vec<Point>, Vec<f64>) {
    let mut pairs: Vec<(Point, f64)> = points.iter().copied().zip(scales.iter().copied()).collect();
    pairs.sort_by(|a, b| a.0.load.total_cmp(&b.0.load));
    pairs.into_iter().step_by(points.len().div_ceil(POINTS_MAX).max(1)).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_share_of_points_lies_below() {
        // Points spread evenly over 90 to 110 % of a rising curve, in an order that has nothing to
        // do with load.
        let spread = |i: usize| 0.9 + 0.2 * ((i * 37 % 100) as f64 / 100.0);
        let points: Vec<Point> = (0..400)
            .map(|i| Point { load: 0.025 * (i + 1) as f64, value: (20.0 + 3.0 * 0.025 * (i + 1) as f64) * spread(i) })
            .collect();
        let scales: Vec<f64> = points.iter().map(|p| 1.0 / (20.0 + 3.0 * p.load)).collect();
        let basis = Basis::new(&points, 10.0, true);
        for (share, factor) in [(0.1, 0.92), (0.5, 1.0), (0.9, 1.08)] {
            let fitted = quantile(&points, &scales, &basis, share).expect("a quantile");
            let below = points.iter().filter(|p| p.value <= fitted.value(p.load)).count() as f64 / points.len() as f64;
            assert!((below - share).abs() < 0.04, "{below} lie below quantile {share}");
            let (value, wanted) = (fitted.value(5.0), 35.0 * factor);
            assert!((value / wanted - 1.0).abs() < 0.02, "{value} at quantile {share}, wanted {wanted}");
        }
    }

    #[test]
    fn many_points_are_thinned_in_order_of_load() {
        let points: Vec<Point> = (0..5_000).rev().map(|i| Point { load: f64::from(i), value: 1.0 }).collect();
        let (thin, scales) = thinned(&points, &vec![1.0; points.len()]);
        assert_eq!((thin.len(), scales.len(), thin[1].load), (1_667, 1_667, 3.0));
    }
}
