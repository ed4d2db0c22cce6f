//! Bounded load: how many requests of a class one engine may have in flight before the next rank of
//! their keys gets the excess. No key, however hot, fills one engine while others idle.
//!
//! Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads" (SODA 2018),
//! with the engine's planned share in place of an equal one. As long as the shares sum to 1, some
//! engine is always below its bound. A bound moves requests and refuses none.

/// Part of the requests that an engine has in flight at capacity which hardly slow each other down:
/// its batch is an eighth full.
const QUIET_FRAC: f64 = 0.125;
/// Bounds of the number of requests that are never moved. Two: the next request of a client may
/// come before its last is counted as ended. Eight: a conversation with some tools at once stays
/// together, and more of one key are worth a second prefill.
const QUIET: (usize, usize) = (2, 8);
/// The same where the engine's capacity is not known.
const QUIET_UNKNOWN: usize = 4;
/// Tolerance of comparisons, in requests: shares are rounded.
const EPSILON: f64 = 1e-9;

/// Requests in flight to an engine at capacity, by Little's law.
pub fn in_flight_at_capacity(capacity_rps: f64, ttft_ms: f64, output_tokens: f64, tbot_ms: f64) -> f64 {
    capacity_rps * (ttft_ms + output_tokens * tbot_ms) / 1e3
}

/// The bound of one class at one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    factor: f64,
    /// Planned weight of the engine.
    weight: f64,
    /// Requests of the class that are never moved.
    quiet: usize,
    /// Requests of all classes beyond which the engine is above its capacity.
    most: usize,
}

impl Bound {
    /// `factor` is at least 1. `at_capacity` is the number of requests that this data plane has in
    /// flight to the engine at capacity; 0 where that is not known.
    pub fn new(factor: f64, weight: f64, at_capacity: f64) -> Self {
        if at_capacity <= 0.0 {
            return Self { factor, weight, quiet: QUIET_UNKNOWN, most: usize::MAX };
        }
        let quiet = ((QUIET_FRAC * at_capacity) as usize).clamp(QUIET.0, QUIET.1);
        Self { factor, weight, quiet, most: ((factor * at_capacity).ceil() as usize).max(quiet) }
    }

    /// Whether one more request of the class should go elsewhere. The engine has `here` requests of
    /// the class and `of_all` of all classes in flight, and the class has `of_class` at all
    /// engines; `available_weight` is the sum of the weights of the engines that can be reached.
    #[inline]
    pub fn is_loaded(&self, here: usize, of_all: usize, of_class: usize, available_weight: f64) -> bool {
        if here < self.quiet {
            return false;
        }
        let share = if available_weight > 0.0 { (self.weight / available_weight).min(1.0) } else { 1.0 };
        of_all >= self.most || here as f64 + EPSILON >= self.factor * share * (of_class + 1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests at each engine when `requests` of one key are in flight at once. The key tries the
    /// engines in their order.
    fn spread(weights: &[f64], at_capacity: f64, requests: usize) -> Vec<usize> {
        let bounds: Vec<Bound> = weights.iter().map(|&weight| Bound::new(1.25, weight, at_capacity)).collect();
        let mut here = vec![0; weights.len()];
        for request in 0..requests {
            let free = |&e: &usize| !bounds[e].is_loaded(here[e], here[e], request, weights.iter().sum());
            let picked = (0..weights.len()).find(free).unwrap_or(0);
            here[picked] += 1;
        }
        here
    }

    #[test]
    fn one_hot_key_puts_no_engine_above_the_factor_times_its_share() {
        for at_capacity in [0.0, 10.0, 300.0] {
            let here = spread(&[0.25; 4], at_capacity, 32);
            assert_eq!(here[..3], [10, 10, 10], "{at_capacity}");
        }
        let here = spread(&[0.6, 0.3, 0.1], 0.0, 100);
        assert_eq!(here, [75, 25, 0]);
        let here = spread(&[0.1, 0.3, 0.6], 0.0, 100);
        assert!(here[0] <= 13 && (36..=38).contains(&here[1]), "the excess goes on rank by rank: {here:?}");
    }

    #[test]
    fn few_requests_stay_together_and_an_only_engine_takes_all() {
        assert_eq!(spread(&[0.5; 2], 0.0, 4), [4, 0]);
        assert_eq!(spread(&[0.5; 2], 1.0, 2), [2, 0]);
        assert_eq!(spread(&[1.0, 0.0], 0.0, 1000), [1000, 0]);
    }

    #[test]
    fn an_engine_that_is_gone_leaves_its_share_to_the_others() {
        let bound = Bound::new(1.25, 0.25, 0.0);
        // Of four engines two are left: each may have five eighths.
        assert!(!bound.is_loaded(62, 62, 99, 0.5) && bound.is_loaded(63, 63, 99, 0.5));
        assert!(bound.is_loaded(32, 32, 99, 1.0) && !bound.is_loaded(31, 31, 99, 1.0));
    }

    #[test]
    fn an_engine_above_its_capacity_gets_no_more_whatever_its_share() {
        let at_capacity = in_flight_at_capacity(10.0, 500.0, 100.0, 15.0);
        assert_eq!(at_capacity, 20.0);
        let bound = Bound::new(1.25, 1.0, at_capacity);
        assert!(!bound.is_loaded(24, 24, 24, 1.0) && bound.is_loaded(25, 25, 25, 1.0));
        assert!(bound.is_loaded(5, 25, 5, 1.0), "requests of other classes count");
        assert!(!bound.is_loaded(1, 25, 5, 1.0), "but not against the first few");
    }
}
