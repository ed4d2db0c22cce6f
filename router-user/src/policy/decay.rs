//! How much a plan is worth when no controller renews it. Pure.
//!
//! A plan is optimal for the demand that it was made for. Once the controller has been silent for
//! long, that demand is a guess; the capacity of each engine and its distance are still known. So
//! the weights of a route move, by half-lives, to shares in proportion to capacity, among the
//! engines that are no farther away than the farthest one the plan uses (the RTT ring).

use std::time::Duration;

/// Steps per half-life in which weights move: each step builds a new slot table and moves a few
/// conversations.
const STEPS: u32 = 8;

/// One eligible engine of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Published weight, 0 to 1.
    pub weight: f64,
    /// Load it may be given, in requests/s.
    pub capacity_rps: f64,
    /// Round-trip time to it, in ms.
    pub rtt_ms: f64,
}

/// Share of the plan, 0 to 1, that still counts after a `silence` of the controller.
///
/// 1 until `stale_after`, then halved every `stale_after`, in [`STEPS`] steps per half-life.
pub fn plan_share(silence: Duration, stale_after: Duration) -> f64 {
    let beyond = silence.saturating_sub(stale_after).as_secs_f64() / stale_after.as_secs_f64();
    0.5_f64.powf((beyond * f64::from(STEPS)).floor() / f64::from(STEPS))
}

/// Weights of a route of whose plan `plan_share` (0 to 1) still counts.
///
/// Shape: one weight per engine. Range: weights are >= 0 and sum to the sum of the published ones;
/// an engine outside the ring gets no more than it had.
pub fn decayed(engines: &[Candidate], plan_share: f64) -> Vec<f64> {
    let sum: f64 = engines.iter().map(|e| e.weight).sum();
    let ring_ms = engines.iter().filter(|e| e.weight > 0.0).map(|e| e.rtt_ms).fold(0.0, f64::max);
    let capacity = |e: &Candidate| if e.rtt_ms <= ring_ms { e.capacity_rps.max(0.0) } else { 0.0 };
    let ring_rps: f64 = engines.iter().map(capacity).sum();
    if sum <= 0.0 || ring_rps <= 0.0 {
        // Nothing was planned, or no engine in the ring has a known capacity: the plan is the best
        // guess.
        return engines.iter().map(|e| e.weight).collect();
    }
    engines.iter().map(|e| plan_share * e.weight + (1.0 - plan_share) * sum * capacity(e) / ring_rps).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn engine(weight: f64, capacity_rps: f64, rtt_ms: f64) -> Candidate {
        Candidate { weight, capacity_rps, rtt_ms }
    }

    #[test]
    fn holds_then_halves() {
        let limit = Duration::from_secs(600);
        let after = |seconds| plan_share(Duration::from_secs(seconds), limit);
        assert_eq!((after(0), after(600), after(674)), (1.0, 1.0, 1.0));
        assert!(after(676) < 1.0);
        assert_eq!((after(1_200), after(1_800)), (0.5, 0.25));
        assert!(plan_share(Duration::MAX, limit) >= 0.0);
    }

    #[test]
    fn goes_over_to_capacity_within_the_ring_of_the_plan() {
        // The near one carries all it can, the second the rest; the third is too far away and stays
        // out.
        let engines = [engine(0.9, 100.0, 1.0), engine(0.1, 300.0, 30.0), engine(0.0, 900.0, 80.0)];
        assert_eq!(decayed(&engines, 1.0), [0.9, 0.1, 0.0]);
        assert_eq!(decayed(&engines, 0.0), [0.25, 0.75, 0.0]);
        assert_eq!(decayed(&engines, 0.5), [0.575, 0.425, 0.0]);
        assert_eq!(decayed(&[engine(0.0, 1.0, 1.0)], 0.0), [0.0], "a route that is refused stays so");
        assert_eq!(decayed(&[engine(1.0, 0.0, 1.0)], 0.0), [1.0], "no capacity is known");
    }

    proptest! {
        #[test]
        fn weights_stay_weights(
            engines in prop::collection::vec((0.0..1.0_f64, 0.0..1e3_f64, 0.0..200.0_f64), 1..12),
            plan_share in 0.0..=1.0_f64,
        ) {
            let sum: f64 = engines.iter().map(|e| e.0).sum();
            prop_assume!(sum > 0.0);
            let engines: Vec<Candidate> = engines.into_iter().map(|(w, c, r)| engine(w / sum, c, r)).collect();
            let weights = decayed(&engines, plan_share);
            prop_assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(weights.iter().all(|&w| (0.0..=1.0 + 1e-9).contains(&w)));
            let farthest = engines.iter().filter(|e| e.weight > 0.0).map(|e| e.rtt_ms).fold(0.0, f64::max);
            for (engine, weight) in engines.iter().zip(weights) {
                prop_assert!(engine.rtt_ms <= farthest || weight <= engine.weight);
            }
        }
    }
}
