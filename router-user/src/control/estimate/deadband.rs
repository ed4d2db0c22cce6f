//! Deadband of measured distances: a plan changes only when a distance has clearly changed. Pure.
//!
//! A round-trip time keeps its value until a measurement leaves the deadband around it; then it
//! takes the measurement, in whole milliseconds. So noise within the band changes no input, a value
//! at the edge of a band does not flap, and engines at the same distance keep the same number,
//! which lets the plan treat them as one pool.

/// Half-width of the deadband, in ms: about the price of moving a request, below which no plan
/// would follow a change anyway.
pub const RTT_BAND_MS: f64 = 5.0;

/// Half-width of the deadband as a fraction of the current value, for long distances. The larger of
/// the two widths holds.
const RTT_BAND_FRAC: f64 = 0.05;

/// Round-trip times in ms, `[cluster][engine]`, that change only when a measurement leaves their
/// deadband.
#[derive(Clone, Debug)]
pub struct SteadyRtt {
    current_ms: Vec<Vec<f64>>,
}

impl SteadyRtt {
    /// Starts from configured or first measured values, unchanged.
    pub fn new(rtt_ms: Vec<Vec<f64>>) -> Self {
        Self { current_ms: rtt_ms }
    }

    /// Takes measurements in the shape of the current values, and ignores those that are not finite
    /// and >= 0. Returns how many values changed.
    pub fn observe(&mut self, measured_ms: &[Vec<f64>]) -> usize {
        let mut changed = 0;
        let pairs = self.current_ms.iter_mut().flatten().zip(measured_ms.iter().flatten());
        for (current, &measured) in pairs {
            if Self::has_left(*current, measured) {
                *current = measured.round();
                changed += 1;
            }
        }
        changed
    }

    /// Takes the measurement of one cluster and engine.
    pub fn observe_one(&mut self, cluster: usize, engine: usize, measured_ms: f64) {
        let current = &mut self.current_ms[cluster][engine];
        if Self::has_left(*current, measured_ms) {
            *current = measured_ms.round();
        }
    }

    /// True if a measurement is outside the deadband of the current value; false if it is not
    /// finite and >= 0.
    pub fn has_left(current_ms: f64, measured_ms: f64) -> bool {
        let is_measurement = measured_ms.is_finite() && measured_ms >= 0.0;
        is_measurement && (measured_ms - current_ms).abs() > RTT_BAND_MS.max(RTT_BAND_FRAC * current_ms)
    }

    /// The round-trip times to plan with.
    pub fn rtt_ms(&self) -> &[Vec<f64>] {
        &self.current_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_inside_the_band_changes_nothing_and_a_value_at_its_edge_does_not_flap() {
        let mut steady = SteadyRtt::new(vec![vec![1.3, 80.0, 200.0]]);
        let mut changes = |measured: [f64; 3]| (steady.observe(&[measured.to_vec()]), steady.rtt_ms()[0].clone());
        assert_eq!(changes([6.2, 84.9, 209.9]), (0, vec![1.3, 80.0, 200.0]));
        assert_eq!(changes([0.0, 75.1, 190.1]), (0, vec![1.3, 80.0, 200.0]));
        assert_eq!(changes([1.3, 85.2, 200.0]), (1, vec![1.3, 85.0, 200.0]));
        assert_eq!(changes([1.3, 84.8, 200.0]), (0, vec![1.3, 85.0, 200.0]), "back across the edge it came over");
        assert_eq!(changes([f64::NAN, -1.0, f64::INFINITY]), (0, vec![1.3, 85.0, 200.0]));
    }
}
