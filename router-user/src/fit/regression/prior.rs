//! Points for loads that nobody measured, by the physics of continuous batching.
//!
//! An iteration of continuous batching takes `a + b (prompt tokens in it) + c (batch)`. At load `L`
//! with `p` prompt and `o` output tokens an iteration of length `t` meets `p L t` prompt tokens,
//! and by Little's law the batch is `L o t`. So `t = a / (1 - L (b p + c o))`: time between tokens,
//! and with it the stay in the engine, is a hyperbola in load whose inverse is a straight line. The
//! first token waits for a share of such an engine like `rho / (1 - rho)`, and no less than an
//! iteration grows.

use crate::fit::regression::convex::Point;
use crate::fit::regression::nnls::nnls;

/// Number of points between the largest measured load and capacity. Each knot in between then has
/// some above it.
const POINTS: usize = 24;

/// Smallest ratio of a hyperbola's pole to capacity: an engine at capacity is full, not infinitely
/// slow.
const POLE_FRAC: f64 = 1.02;

/// The hyperbola `value / (1 - load / pole)`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Hyperbola {
    value: f64,
    inverse_pole: f64,
}

impl Hyperbola {
    /// Fits `1 / value`, a straight line in load, with relative errors.
    fn fit(points: &[Point], capacity: f64) -> Self {
        let points: Vec<&Point> = points.iter().filter(|p| p.value > 0.0).collect();
        let columns = [points.iter().map(|p| p.value).collect(), points.iter().map(|p| -p.value * p.load).collect::<Vec<_>>()];
        let line = nnls(&columns, &vec![1.0; points.len()]);
        let start = line[0].max(f64::MIN_POSITIVE);
        Self { value: 1.0 / start, inverse_pole: (line[1] / start).min(1.0 / (POLE_FRAC * capacity)) }
    }

    fn growth(&self, load: f64) -> f64 {
        1.0 / (1.0 - load * self.inverse_pole)
    }
}

/// Pseudo-observations between `known` and `capacity`, in requests/s, for each of the three
/// quantities.
pub(crate) struct Prior {
    pub(crate) in_engine: Vec<Point>,
    pub(crate) ttft: Vec<Point>,
    pub(crate) tbot: Vec<Point>,
}

impl Prior {
    pub(crate) fn new(in_engine: &[Point], ttft: &[Point], tbot: &[Point], known: f64, capacity: f64) -> Self {
        let stays: Vec<Point> = in_engine.iter().map(|p| Point { value: p.value / p.load, ..*p }).collect();
        let stay = Hyperbola::fit(&stays, capacity);
        let iteration = Hyperbola::fit(tbot, capacity);
        let queue = |load: f64| load / (POLE_FRAC * capacity - load);
        let seen: Vec<&Point> = ttft.iter().filter(|p| p.value > 0.0).collect();
        let columns =
            [seen.iter().map(|p| 1.0 / p.value).collect(), seen.iter().map(|p| queue(p.load) / p.value).collect::<Vec<_>>()];
        let first = nnls(&columns, &vec![1.0; seen.len()]);
        let ttft = |load: f64| (first[0] + first[1] * queue(load)).max(first[0] * iteration.growth(load));
        let gap = |value: &dyn Fn(f64) -> f64| {
            let loads = (1..=POINTS).map(|i| known + (capacity - known) * i as f64 / POINTS as f64);
            loads.map(|load| Point { load, value: value(load) }).collect()
        };
        Self {
            in_engine: gap(&|load| load * stay.value * stay.growth(load)),
            ttft: gap(&ttft),
            tbot: gap(&|load| iteration.value * iteration.growth(load)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_half_of_a_hyperbola_is_told_from_its_lower_half() {
        let (pole, capacity) = (7.2, 6.0);
        let tbot = |load: f64| 30.0 / (1.0 - load / pole);
        let ttft = |load: f64| 110.0 + 30.0 * load / (POLE_FRAC * capacity - load);
        let measure = |value: &dyn Fn(f64) -> f64| -> Vec<Point> {
            (1..=30).map(|i| Point { load: 0.1 * f64::from(i), value: value(0.1 * f64::from(i)) }).collect()
        };
        let in_engine = |load: f64| load * (0.2 * tbot(load));
        let prior = Prior::new(&measure(&in_engine), &measure(&ttft), &measure(&tbot), 3.0, capacity);
        for (points, truth) in [(&prior.in_engine, &in_engine as &dyn Fn(f64) -> f64), (&prior.tbot, &tbot)] {
            assert_eq!((points.len(), points[POINTS - 1].load), (POINTS, capacity));
            for p in points {
                assert!((p.value / truth(p.load) - 1.0).abs() < 1e-6, "{p:?}, wanted {}", truth(p.load));
            }
        }
        assert!(prior.ttft.iter().all(|p| p.value > ttft(p.load) * 0.999), "{:?}", prior.ttft);
    }
}
