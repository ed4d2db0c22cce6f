//! Burst delay: the wait that bursty arrivals add to a profile, which was measured with steady
//! arrivals. Pure.
//!
//! docs/model.md, section 10. Let `D` be the index of dispersion of the arrival counts (variance by
//! mean; 1 without bursts), and `C` the capacity of an engine. At utilisation `u` the bursts add
//! `(D - 1) / 2 x u^2 / (1 - u)` waiting requests (Kingman 1961, the heavy-traffic approximation of
//! a single queue), which is a wait of `(D - 1) / 2C x u / (1 - u)` for each request. The delay is
//! a cost, not a limit: it keeps engines less full where room elsewhere is cheap, and sheds no
//! request.

/// Breakpoints of the delay: utilisation `u`, and `u / (1 - u)` there. Beyond the last knot the
/// last slope continues. That close to full, a burst of the ten seconds over which dispersion is
/// measured ends before the wait reaches the formula's value.
pub(crate) const KNOTS: [(f64, f64); 9] = [
    (0.0, 0.0),
    (0.3, 0.3 / 0.7),
    (0.5, 1.0),
    (0.65, 0.65 / 0.35),
    (0.75, 3.0),
    (0.83, 0.83 / 0.17),
    (0.88, 0.88 / 0.12),
    (0.92, 0.92 / 0.08),
    (0.95, 19.0),
];

/// `u / (1 - u)` at `utilisation` >= 0, interpolated by [`KNOTS`].
pub(crate) fn wait(utilisation: f64) -> f64 {
    let (from, value) = KNOTS[segment(utilisation)];
    value + slope(utilisation) * (utilisation - from)
}

/// Slope of [`wait`] to the right of `utilisation`.
pub(crate) fn slope(utilisation: f64) -> f64 {
    let first = segment(utilisation).min(KNOTS.len() - 2);
    let ((x0, y0), (x1, y1)) = (KNOTS[first], KNOTS[first + 1]);
    (y1 - y0) / (x1 - x0)
}

/// Index of the last knot at or before `utilisation`.
fn segment(utilisation: f64) -> usize {
    KNOTS.partition_point(|&(at, _)| at <= utilisation).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_convex_and_follows_the_law_up_to_the_last_knot() {
        for step in 0..950 {
            let at = f64::from(step) / 1000.0;
            let law = at / (1.0 - at);
            assert!(wait(at) >= law - 1e-12 && wait(at) < law * 1.12 + 0.06, "{} at {at}, law {law}", wait(at));
        }
        assert!(KNOTS.windows(3).all(|k| slope(k[0].0) < slope(k[1].0)));
        assert!(wait(1.0) < 35.0 && wait(2.0).is_finite());
    }
}
