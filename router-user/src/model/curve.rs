//! Convex, non-decreasing, piecewise-linear functions of load.

use thiserror::Error;

/// A convex, non-decreasing, piecewise-linear function of load, defined from load 0 upwards.
///
/// Units: load in requests/s, value in ms. Beyond the last knot the last slope continues; the curve
/// is never cut off flat.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    knots: Vec<(f64, f64)>,
}

/// Why a list of knots is not a valid curve. `knot` counts from 0.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CurveError {
    #[error("has no knots; wanted at least [[0, value]]")]
    Empty,
    #[error("knot {knot} is [{load}, {value}]; wanted finite numbers >= 0")]
    NotANumber { knot: usize, load: f64, value: f64 },
    #[error("starts at load {load}; wanted the first knot at load 0")]
    Start { load: f64 },
    #[error("knot {knot} has load {load}, after {before}; wanted strictly growing loads")]
    Order { knot: usize, load: f64, before: f64 },
    #[error("falls at knot {knot}, from {before} to {value}; wanted values that never fall as load grows")]
    Falling { knot: usize, value: f64, before: f64 },
    #[error(
        "is not convex: the slope falls at knot {knot}, from {before:.4} to {slope:.4} per request/s; wanted slopes that never fall as load grows"
    )]
    NotConvex { knot: usize, slope: f64, before: f64 },
}

impl Curve {
    /// Builds a curve from `(load, value)` knots.
    ///
    /// Errors: the first [`CurveError`] found, in the order of its variants, knot by knot.
    pub fn new(knots: Vec<(f64, f64)>) -> Result<Self, CurveError> {
        let Some(&(start, _)) = knots.first() else {
            return Err(CurveError::Empty);
        };
        for (knot, &(load, value)) in knots.iter().enumerate() {
            if !(load.is_finite() && value.is_finite() && load >= 0.0 && value >= 0.0) {
                return Err(CurveError::NotANumber { knot, load, value });
            }
        }
        if start != 0.0 {
            return Err(CurveError::Start { load: start });
        }
        let mut before_slope = 0.0_f64;
        for (i, pair) in knots.windows(2).enumerate() {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            if x1 <= x0 {
                return Err(CurveError::Order { knot: i + 1, load: x1, before: x0 });
            }
            if y1 < y0 {
                return Err(CurveError::Falling { knot: i + 1, value: y1, before: y0 });
            }
            let slope = (y1 - y0) / (x1 - x0);
            // A relative tolerance of 10^-9 accepts knots that were rounded when they were printed.
            if slope < before_slope * (1.0 - 1e-9) - 1e-12 {
                return Err(CurveError::NotConvex { knot: i, slope, before: before_slope });
            }
            before_slope = slope;
        }
        Ok(Self { knots })
    }

    /// The knots, `(load, value)`, in order of load.
    pub fn knots(&self) -> &[(f64, f64)] {
        &self.knots
    }

    /// Value at `load` (requests/s, >= 0), in ms.
    pub fn value(&self, load: f64) -> f64 {
        let (x, y) = self.knots[self.segment(load)];
        y + self.slope(load) * (load - x)
    }

    /// Slope to the right of `load`, in ms per request/s.
    pub fn slope(&self, load: f64) -> f64 {
        let first = self.segment(load).min(self.knots.len().saturating_sub(2));
        match (self.knots.get(first), self.knots.get(first + 1)) {
            (Some((x0, y0)), Some((x1, y1))) => (y1 - y0) / (x1 - x0),
            _ => 0.0,
        }
    }

    /// Index of the last knot at or before `load`.
    fn segment(&self, load: f64) -> usize {
        self.knots.partition_point(|&(x, _)| x <= load).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_and_slope_interpolate_and_extrapolate_with_the_last_slope() {
        let curve = Curve::new(vec![(0.0, 120.0), (50.0, 150.0), (90.0, 400.0), (100.0, 900.0)]).expect("convex");
        for (load, value, slope) in [
            (0.0, 120.0, 0.6),
            (25.0, 135.0, 0.6),
            (50.0, 150.0, 6.25),
            (95.0, 650.0, 50.0),
            (100.0, 900.0, 50.0),
            (110.0, 1400.0, 50.0),
        ] {
            assert!((curve.value(load) - value).abs() < 1e-9, "value at {load}: {}", curve.value(load));
            assert!((curve.slope(load) - slope).abs() < 1e-9, "slope at {load}: {}", curve.slope(load));
        }
        let flat = Curve::new(vec![(0.0, 7.0)]).expect("one knot is a constant");
        assert_eq!((flat.value(12.0), flat.slope(12.0)), (7.0, 0.0));
    }

    #[test]
    fn refuses_what_is_no_curve() {
        let check = |knots: &[(f64, f64)], wanted: &str| {
            let error = Curve::new(knots.to_vec()).expect_err(wanted).to_string();
            assert!(error.contains(wanted), "{error:?} lacks {wanted:?}");
        };
        check(&[], "no knots");
        check(&[(0.0, f64::NAN)], "finite");
        check(&[(0.0, -1.0)], ">= 0");
        check(&[(1.0, 1.0)], "starts at load 1");
        check(&[(0.0, 1.0), (0.0, 2.0)], "strictly growing");
        check(&[(0.0, 2.0), (1.0, 1.0)], "falls at knot 1");
        check(&[(0.0, 0.0), (1.0, 5.0), (2.0, 6.0)], "not convex");
    }
}
