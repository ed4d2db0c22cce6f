//! Convex, non-decreasing curves through noisy points: least squares with non-negative weights on
//! hinges.
//!
//! A function `c + s L + sum_b h_b max(0, L - t_b)` with fixed knots `t_b` and no coefficient below
//! zero is convex and non-decreasing, and every such piecewise-linear function with these knots has
//! this form. So the shape constraints are bounds, and the projection is [`nnls`]. Smooth convex
//! functions stand beside the hinges: `1 / (1 - k L)`, which engines that share their time follow,
//! and powers. Hinges and powers have a price, so that noise does not bend the curve;
//! cross-validation sets it. Units: loads in requests/s, values in the unit of the quantity.

use crate::fit::regression::nnls::{least_squares, nnls};
use crate::model::Curve;
use crate::numeric::median;

/// Number of knots that a fit may use. The data usually ask for fewer than ten.
const KNOTS: usize = 18;

/// Density of knots near capacity, where curves bend: a share b of the knots lies below `1 - (1 -
/// b)^KNOT_DENSITY` of capacity.
const KNOT_DENSITY: f64 = 1.8;

/// Factors k of the smooth functions `1 / (1 - k rho)`, where rho is the share of the largest load.
/// Each is infinite at rho = 1 / k.
const RISES: [f64; 7] = [0.3, 0.5, 0.65, 0.78, 0.87, 0.93, 0.97];
/// Exponents of the smooth functions `rho^n`, for curves that are flat first and steep then.
const POWERS: [f64; 4] = [2.0, 4.0, 8.0, 16.0];

/// Prices of bending by hinges and powers to choose from: mean squared contribution against mean
/// squared error.
const PENALTIES: [f64; 5] = [0.003, 0.02, 0.1, 0.4, 2.0];
/// Parts of the points for cross-validation. Each is left out in turn.
const CROSS_VALIDATION_FOLDS: usize = 10;
/// Number of points beyond which noise averages out by itself. The smallest penalty is then used,
/// without cross-validation.
const CROSS_VALIDATION_POINTS_MAX: usize = 1_000;

/// Number of loads at which a smooth curve is sampled for its knots.
const PLACES: usize = 64;
/// Largest height of the chord between two knots above a smooth curve, as a share of its value. It
/// is far below the noise of any measurement.
const CHORD_FRAC: f64 = 5e-3;

/// Fewest points above the last knot. With fewer, a single point would set the slope that goes on
/// to capacity.
const POINTS_BEYOND: usize = 3;

/// Rounds of reweighting. Weights settle in two or three.
const REWEIGHTING_ROUNDS: usize = 5;

/// Robust standard deviations at which the pull of a point stops growing (Huber 1964). Within them,
/// least squares is kept for 98.8 % of normal noise.
const HUBER_SIGMAS: f64 = 2.5;

/// A measured point, or a point of the prior.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) load: f64,
    pub(crate) value: f64,
}

/// The functions a curve is a sum of.
#[derive(Clone, Debug)]
pub(crate) struct Basis {
    /// Whether the curve may start above 0.
    intercept: bool,
    knots: Vec<f64>,
    smooth: Vec<Smooth>,
    capacity: f64,
    /// Largest load of the points: beyond it the curve is a continuation.
    known: f64,
}

/// A smooth function of the share of the largest load: 0 at 0, convex, rising.
#[derive(Clone, Copy, Debug)]
enum Smooth {
    Rise(f64),
    Power(f64),
}

impl Smooth {
    /// Times the share itself for a curve that starts at 0, such as requests in the engine, which
    /// are load x time.
    fn value(self, share: f64, intercept: bool) -> f64 {
        match self {
            Self::Rise(k) if intercept => k * share / (1.0 - k * share.min(1.0)),
            Self::Rise(k) => share / (1.0 - k * share.min(1.0)),
            Self::Power(power) if intercept => share.powf(power),
            Self::Power(power) => share.powf(power + 1.0),
        }
    }
}

/// A curve as weights of its basis.
#[derive(Clone, Debug)]
pub(crate) struct Fitted {
    basis: Basis,
    weights: Vec<f64>,
}

impl Basis {
    pub(crate) fn new(points: &[Point], capacity: f64, intercept: bool) -> Self {
        let mut loads: Vec<f64> = points.iter().map(|p| p.load).collect();
        loads.sort_by(f64::total_cmp);
        let beyond = |knot: f64| loads.len() - loads.partition_point(|&load| load <= knot);
        let knots = (1..=KNOTS)
            .map(|b| capacity * (1.0 - (1.0 - b as f64 / (KNOTS + 1) as f64).powf(KNOT_DENSITY)))
            .filter(|&knot| loads.first().is_some_and(|&first| first < knot) && beyond(knot) >= POINTS_BEYOND)
            .collect();
        let known = loads.last().map_or(0.0, |last| last.min(capacity));
        Self { intercept, knots, smooth: Vec::new(), capacity, known }
    }

    /// Smooth functions besides, for points with noise.
    pub(crate) fn with_smooth(self) -> Self {
        Self { smooth: RISES.map(Smooth::Rise).into_iter().chain(POWERS.map(Smooth::Power)).collect(), ..self }
    }

    /// Knots at the inner of the `places`, which are in order: for points at few, repeated loads.
    pub(crate) fn at(places: &[f64], intercept: bool) -> Self {
        let largest = places.last().copied().unwrap_or(0.0);
        let knots = places.iter().copied().filter(|&place| place > places[0] && place < largest).collect();
        Self { intercept, knots, smooth: Vec::new(), capacity: largest, known: largest }
    }

    /// Values of the functions at `load`: 1 if there is an intercept, the load, a hinge for each
    /// knot, and the smooth ones.
    pub(crate) fn features(&self, load: f64) -> impl Iterator<Item = f64> + '_ {
        let hinges = self.knots.iter().map(move |knot| (load - knot).max(0.0));
        let smooth = self.smooth.iter().map(move |function| function.value(load / self.known, self.intercept));
        self.intercept.then_some(1.0).into_iter().chain(std::iter::once(load)).chain(hinges).chain(smooth)
    }

    /// Number of straight functions.
    fn plain(&self) -> usize {
        usize::from(self.intercept) + 1
    }

    /// Whether the function `nth` pays for bending.
    fn is_penalised(&self, nth: usize) -> bool {
        let bent = nth.checked_sub(self.plain());
        bent.is_some_and(|bent| bent.checked_sub(self.knots.len()).is_none_or(|nth| matches!(self.smooth[nth], Smooth::Power(_))))
    }

    /// The features of all points, each row times its scale, by column.
    pub(crate) fn columns(&self, points: &[Point], scales: &[f64]) -> Vec<Vec<f64>> {
        let mut columns = vec![Vec::with_capacity(points.len()); self.plain() + self.knots.len() + self.smooth.len()];
        for (point, scale) in points.iter().zip(scales) {
            columns.iter_mut().zip(self.features(point.load)).for_each(|(column, value)| column.push(value * scale));
        }
        columns
    }
}

impl Fitted {
    pub(crate) fn new(basis: Basis, weights: Vec<f64>) -> Self {
        Self { basis, weights }
    }

    pub(crate) fn value(&self, load: f64) -> f64 {
        self.basis.features(load).zip(&self.weights).map(|(f, w)| f * w).sum()
    }

    /// The curve up to capacity, in knots with few digits.
    ///
    /// Beyond the points the last slope goes on, but never flatter than a rise by the value itself
    /// over the whole capacity: a server that shares itself among its requests gets slower at least
    /// that fast above half load.
    pub(crate) fn curve(&self) -> Curve {
        let Basis { knots, smooth, capacity, known, .. } = &self.basis;
        let (bent, smooth_weights) = self.weights[self.basis.plain()..].split_at(knots.len());
        let is_smooth = smooth.iter().zip(smooth_weights).any(|(_, weight)| *weight > 0.0);
        let mut places: Vec<f64> = vec![0.0];
        places.extend(knots.iter().zip(bent).filter(|(_, weight)| is_smooth || **weight > 0.0).map(|(&knot, _)| knot));
        if is_smooth {
            places.extend((1..=PLACES).map(|nth| known * (1.0 - (1.0 - nth as f64 / PLACES as f64).powf(KNOT_DENSITY))));
            places.retain(|place| place <= known);
            places.sort_by(f64::total_cmp);
        }
        let mut knees: Vec<(f64, f64)> = places.iter().map(|&place| (place, self.value(place))).collect();
        if is_smooth {
            knees = chords(&knees);
        }
        let slope = (self.value(*known) - self.value(known * (1.0 - SLOPE_STEP))) / (known * SLOPE_STEP);
        let floor = self.value(*known) / capacity;
        if capacity - known > 1e-6 * capacity && (is_smooth || slope < floor) {
            knees.push((*known, self.value(*known)));
            knees.push((*capacity, self.value(*known) + slope.max(floor) * (capacity - known)));
        } else {
            knees.push((*capacity, self.value(*capacity)));
        }
        rounded(&knees, *capacity)
    }
}

/// Share of the known loads over which their last slope is measured.
const SLOPE_STEP: f64 = 1e-3;

/// The fewest points of a convex curve between which no chord lies more than [`CHORD_FRAC`] above
/// it.
fn chords(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut kept = vec![points[0]];
    let mut from = 0;
    while from + 1 < points.len() {
        let start = points[from];
        let is_close = |to: usize| {
            let slope = (points[to].1 - start.1) / (points[to].0 - start.0).max(f64::MIN_POSITIVE);
            points[from + 1..to].iter().all(|p| start.1 + slope * (p.0 - start.0) <= p.1 * (1.0 + CHORD_FRAC))
        };
        let to = (from + 1..points.len()).take_while(|&to| is_close(to)).last().unwrap_or(from + 1);
        kept.push(points[to]);
        from = to;
    }
    kept
}

/// Rounds knots to few digits, and keeps their lower convex hull, so that the result is still
/// convex.
fn rounded(knees: &[(f64, f64)], capacity: f64) -> Curve {
    let unit = |size: f64, digits: i32| 10_f64.powi((size.max(1e-9).log10().floor() as i32 - digits).min(0));
    // Division by a power of ten that is whole gives the number closest to its short decimal form.
    let round = |value: f64, unit: f64| (value / unit).round() / (1.0 / unit).round();
    let top = knees.iter().map(|k| k.1).fold(0.0, f64::max);
    let (load_unit, value_unit) = (unit(capacity, 4), unit(top, 5));
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for &(load, value) in knees {
        // Capacity is kept as it is: no knot may lie beyond it.
        let load = if load == capacity { load } else { round(load, load_unit).min(capacity) };
        let knot = (load, round(value, value_unit));
        if hull.last().is_some_and(|last| knot.0 <= last.0) {
            continue;
        }
        while let [.., a, b] = hull[..] {
            let rises = |p: (f64, f64), q: (f64, f64)| (q.1 - p.1) / (q.0 - p.0);
            if rises(a, b) < rises(b, knot) {
                break;
            }
            hull.pop();
        }
        hull.push(knot);
    }
    Curve::new(hull).expect("a rising lower hull that starts at load 0 is a curve")
}

/// The mean curve, and how the spread of the points grows with it.
pub(crate) struct Mean {
    pub(crate) fitted: Fitted,
    /// The variance of a point grows like the mean to this power, 1 to 2.
    pub(crate) power: f64,
}

/// Weighted least squares. The residuals set the weights, and cross-validation sets the price of
/// bending. `points` must not be empty.
pub(crate) fn mean(points: &[Point], basis: &Basis) -> Mean {
    let floor = floor(points);
    let mut power = 2.0;
    let mut scales: Vec<f64> = points.iter().map(|p| 1.0 / p.value.max(floor)).collect();
    // Hinges alone are for points without noise.
    let bends_freely = basis.smooth.is_empty();
    let mut penalty = if bends_freely { 0.0 } else { PENALTIES[PENALTIES.len() / 2] };
    let mut fitted = weigh(points, basis, &scales, penalty);
    for round in 0..REWEIGHTING_ROUNDS {
        let means: Vec<f64> = points.iter().map(|p| fitted.value(p.load).max(floor)).collect();
        power = variance_power(points, &means);
        let deviations: Vec<f64> =
            points.iter().zip(&means).map(|(p, mean)| (p.value - mean).abs() / mean.powf(power / 2.0)).collect();
        let bound = HUBER_SIGMAS * 1.4826 * median(deviations.iter().copied()).unwrap_or(0.0);
        scales = (means.iter().zip(&deviations))
            .map(|(mean, &deviation)| {
                let huber = if bound > 0.0 && deviation > bound { (bound / deviation).sqrt() } else { 1.0 };
                huber / mean.powf(power / 2.0)
            })
            .collect();
        // Weights have nearly settled after one round; the last choice is made with the last
        // weights.
        if !bends_freely && (round == 1 || round == REWEIGHTING_ROUNDS - 1) {
            penalty = choose(points, basis, &scales);
        }
        fitted = weigh(points, basis, &scales, penalty);
    }
    Mean { fitted, power }
}

/// Smallest value that is not taken for zero when points are weighed.
pub(crate) fn floor(points: &[Point]) -> f64 {
    (1e-3 * median(points.iter().map(|p| p.value)).unwrap_or(0.0)).max(1e-9)
}

/// Least squares with one more row for each function that pays for bending.
fn weigh(points: &[Point], basis: &Basis, scales: &[f64], penalty: f64) -> Fitted {
    let mut b: Vec<f64> = points.iter().zip(scales).map(|(p, scale)| p.value * scale).collect();
    let mut columns = basis.columns(points, scales);
    for nth in (0..columns.len()).filter(|&nth| penalty > 0.0 && basis.is_penalised(nth)) {
        let size = columns[nth][..points.len()].iter().map(|value| value * value).sum::<f64>().sqrt();
        columns.iter_mut().enumerate().for_each(|(at, column)| column.push(if at == nth { penalty.sqrt() * size } else { 0.0 }));
        b.push(0.0);
    }
    Fitted::new(basis.clone(), nnls(&columns, &b))
}

/// The penalty with the smallest error on points that are left out.
fn choose(points: &[Point], basis: &Basis, scales: &[f64]) -> f64 {
    if points.len() > CROSS_VALIDATION_POINTS_MAX {
        return PENALTIES[0];
    }
    let mut by_load: Vec<usize> = (0..points.len()).collect();
    by_load.sort_by(|&a, &b| points[a].load.total_cmp(&points[b].load));
    let loss = |penalty: f64| -> f64 {
        let of_fold = |fold: usize| -> f64 {
            let (held, rest): (Vec<_>, Vec<_>) =
                by_load.iter().enumerate().partition(|(nth, _)| nth % CROSS_VALIDATION_FOLDS == fold);
            let (rest, rest_scales): (Vec<Point>, Vec<f64>) = rest.into_iter().map(|(_, &i)| (points[i], scales[i])).unzip();
            let fitted = weigh(&rest, basis, &rest_scales, penalty);
            let miss = |i: usize| (points[i].value - fitted.value(points[i].load)) * scales[i];
            held.into_iter().map(|(_, &i)| miss(i).powi(2)).sum()
        };
        (0..CROSS_VALIDATION_FOLDS).map(of_fold).sum()
    };
    let losses = PENALTIES.map(|penalty| (loss(penalty), penalty));
    losses.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(PENALTIES[0], |(_, penalty)| penalty)
}

/// Slope of the logarithm of squared residuals over that of the mean.
fn variance_power(points: &[Point], means: &[f64]) -> f64 {
    let logs = points.iter().zip(means).map(|(p, mean)| (((p.value - mean).powi(2)).max(1e-12 * mean * mean).ln(), mean.ln()));
    let (squares, means): (Vec<f64>, Vec<f64>) = logs.unzip();
    least_squares(vec![vec![1.0; means.len()], means], squares)[1].clamp(1.0, 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(loads: impl Iterator<Item = f64>, truth: impl Fn(f64) -> f64) -> Vec<Point> {
        loads.map(|load| Point { load, value: truth(load) }).collect()
    }

    #[test]
    fn a_smooth_convex_curve_is_met_and_few_knots_are_kept() {
        let truth = |load: f64| 30.0 / (1.0 - 0.8 * load / 10.0);
        let points = points((1..=100).map(|i| f64::from(i) * 0.1), truth);
        let curve = mean(&points, &Basis::new(&points, 10.0, true).with_smooth()).fitted.curve();
        for load in [0.5, 2.0, 5.0, 8.0, 9.5, 10.0] {
            assert!(
                (curve.value(load) / truth(load) - 1.0).abs() < 0.01,
                "{} at {load}, wanted {}",
                curve.value(load),
                truth(load)
            );
        }
        assert!(curve.knots().len() <= KNOTS + 2 && curve.knots().last().is_some_and(|k| k.0 == 10.0), "{curve:?}");
    }

    #[test]
    fn falling_points_become_their_mean_and_the_end_still_rises() {
        let falling = points((1..=40).map(|i| f64::from(i) * 0.2), |load| 100.0 - load);
        let curve = mean(&falling, &Basis::new(&falling, 10.0, true).with_smooth()).fitted.curve();
        assert!((curve.value(4.0) - 96.0).abs() < 1.0 && curve.slope(0.0) == 0.0, "{curve:?}");
        // The last point is at 8: from there to capacity the value rises by at least its fifth.
        assert!(curve.value(10.0) > 1.19 * curve.value(8.0), "{curve:?}");
    }

    #[test]
    fn one_wild_point_moves_nothing() {
        let truth = |load: f64| 10.0 + load;
        let mut points = points((1..=60).map(|i| f64::from(i) * 0.1), truth);
        for (index, point) in points.iter_mut().enumerate() {
            point.value *= 1.0 + 0.02 * (index as f64 * 2.4).sin();
        }
        points[30].value *= 10.0;
        let curve = mean(&points, &Basis::new(&points, 6.0, true).with_smooth()).fitted.curve();
        for load in [1.0, 3.0, 5.5] {
            assert!((curve.value(load) / truth(load) - 1.0).abs() < 0.03, "{} at {load}", curve.value(load));
        }
    }

    #[test]
    fn a_curve_through_the_origin_has_no_intercept() {
        let points = points((1..=30).map(f64::from), |load| 3.0 * load);
        let curve = mean(&points, &Basis::new(&points, 30.0, false).with_smooth()).fitted.curve();
        assert_eq!(curve.knots(), [(0.0, 0.0), (30.0, 90.0)]);
    }
}
