//! What weights are worth when nobody renews them. Pure.
//!
//! A plan is an optimum for the demand it was made for. When the controller has been gone for long, that demand is a guess; what is
//! still known is how much each engine can carry and how far away it is. So the weights of a route go over, by half-lives, to shares
//! in proportion to capacity, among the engines that are no farther away than the plan itself found worth going (the RTT ring).

use std::time::Duration;

/// Steps per half-life in which weights move: each is a new slot table, and moves a few conversations.
const STEPS: u32 = 8;

/// One eligible engine of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stale {
    /// Published weight, 0 to 1.
    pub weight: f64,
    /// Load it may be given, in requests/s.
    pub capacity_rps: f64,
    /// Round-trip time to it, in ms.
    pub rtt_ms: f64,
}

/// How much of the plan is left after a `silence` of the controller: 1 until `stale_after`, then halved every `stale_after`, in steps.
pub fn trust(silence: Duration, stale_after: Duration) -> f64 {
    let beyond = silence.saturating_sub(stale_after).as_secs_f64() / stale_after.as_secs_f64();
    0.5_f64.powf((beyond * f64::from(STEPS)).floor() / f64::from(STEPS))
}

/// Weights of a route of which `trust` (0 to 1) is left.
///
/// Shape: one weight per engine. Range: they are >= 0 and sum to what the published ones sum to; an engine outside the ring gets
/// no more than it had.
pub fn decayed(engines: &[Stale], trust: f64) -> Vec<f64> {
    let sum: f64 = engines.iter().map(|e| e.weight).sum();
    let ring_ms = engines.iter().filter(|e| e.weight > 0.0).map(|e| e.rtt_ms).fold(0.0, f64::max);
    let capacity = |e: &Stale| if e.rtt_ms <= ring_ms { e.capacity_rps.max(0.0) } else { 0.0 };
    let ring_rps: f64 = engines.iter().map(capacity).sum();
    if sum <= 0.0 || ring_rps <= 0.0 {
        // Nothing was planned, or nothing can carry anything: there is no better guess.
        return engines.iter().map(|e| e.weight).collect();
    }
    engines.iter().map(|e| trust * e.weight + (1.0 - trust) * sum * capacity(e) / ring_rps).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stale(weight: f64, capacity_rps: f64, rtt_ms: f64) -> Stale {
        Stale { weight, capacity_rps, rtt_ms }
    }

    #[test]
    fn holds_then_halves() {
        let limit = Duration::from_secs(600);
        let after = |seconds| trust(Duration::from_secs(seconds), limit);
        assert_eq!((after(0), after(600), after(674)), (1.0, 1.0, 1.0));
        assert!(after(676) < 1.0);
        assert_eq!((after(1_200), after(1_800)), (0.5, 0.25));
        assert!(trust(Duration::MAX, limit) >= 0.0);
    }

    #[test]
    fn goes_over_to_capacity_within_the_ring_of_the_plan() {
        // The near one carries all it can, the second the rest; the third is too far away and stays out.
        let engines = [stale(0.9, 100.0, 1.0), stale(0.1, 300.0, 30.0), stale(0.0, 900.0, 80.0)];
        assert_eq!(decayed(&engines, 1.0), [0.9, 0.1, 0.0]);
        assert_eq!(decayed(&engines, 0.0), [0.25, 0.75, 0.0]);
        assert_eq!(decayed(&engines, 0.5), [0.575, 0.425, 0.0]);
        assert_eq!(decayed(&[stale(0.0, 1.0, 1.0)], 0.0), [0.0], "a route that is refused stays so");
        assert_eq!(decayed(&[stale(1.0, 0.0, 1.0)], 0.0), [1.0], "no capacity is known");
    }

    proptest! {
        #[test]
        fn weights_stay_weights(
            engines in prop::collection::vec((0.0..1.0_f64, 0.0..1e3_f64, 0.0..200.0_f64), 1..12),
            trust in 0.0..=1.0_f64,
        ) {
            let sum: f64 = engines.iter().map(|e| e.0).sum();
            prop_assume!(sum > 0.0);
            let engines: Vec<Stale> = engines.into_iter().map(|(w, c, r)| stale(w / sum, c, r)).collect();
            let weights = decayed(&engines, trust);
            prop_assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(weights.iter().all(|&w| (0.0..=1.0 + 1e-9).contains(&w)));
            let farthest = engines.iter().filter(|e| e.weight > 0.0).map(|e| e.rtt_ms).fold(0.0, f64::max);
            for (engine, weight) in engines.iter().zip(weights) {
                prop_assert!(engine.rtt_ms <= farthest || weight <= engine.weight);
            }
        }
    }
}
