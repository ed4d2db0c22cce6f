//! The retry budget: requests earn credit, retries spend it, so retries can never add more than a known fraction of load.

use super::Millis;

/// Credit of one request: at most one retry per five requests, as Envoy, tower and Finagle all have it.
const CREDIT_PER_REQUEST: f64 = 0.2;
/// Retries per second that are always allowed, for a worker with little traffic.
const FLOOR_PER_S: f64 = 1.0;
/// Credit that can be saved up, so that a quiet hour does not pay for a storm.
const CREDIT_MAX: f64 = 50.0;

#[derive(Clone, Debug)]
pub struct RetryBudget {
    credit: f64,
    at: Millis,
}

impl RetryBudget {
    /// Starts with ten seconds of the floor.
    pub fn new(now: Millis) -> Self {
        Self { credit: 10.0 * FLOOR_PER_S, at: now }
    }

    /// A request has arrived.
    pub fn earn(&mut self) {
        self.credit = (self.credit + CREDIT_PER_REQUEST).min(CREDIT_MAX);
    }

    /// Takes the price of one retry; false, and nothing is taken, when the credit does not reach.
    pub fn spend(&mut self, now: Millis) -> bool {
        let elapsed_s = now.saturating_sub(self.at) as f64 / 1000.0;
        self.at = self.at.max(now);
        self.credit = (self.credit + elapsed_s * FLOOR_PER_S).min(CREDIT_MAX);
        let can = self.credit >= 1.0;
        if can {
            self.credit -= 1.0;
        }
        can
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_stay_within_a_fifth_of_requests_plus_floor_and_savings() {
        let mut budget = RetryBudget::new(0);
        let mut retries = 0;
        for request in 0..10_000u64 {
            budget.earn();
            // Ten requests per ms, all of which fail.
            retries += u64::from(budget.spend(request / 10));
        }
        let bound = 10_000.0 * CREDIT_PER_REQUEST + 1.0 * FLOOR_PER_S + 10.0;
        assert!(retries as f64 <= bound && retries as f64 >= 10_000.0 * CREDIT_PER_REQUEST, "{retries} of at most {bound}");
    }

    #[test]
    fn the_floor_refills_with_time_up_to_the_maximum_and_a_clock_that_stands_or_jumps_back_gives_nothing() {
        let mut budget = RetryBudget::new(1000);
        let drain = |budget: &mut RetryBudget, now| std::iter::from_fn(|| budget.spend(now).then_some(())).count();
        assert_eq!(drain(&mut budget, 1000), 10);
        assert_eq!(drain(&mut budget, 4000), 3);
        assert_eq!(drain(&mut budget, 2000), 0);
        assert_eq!(drain(&mut budget, 4_000_000), CREDIT_MAX as usize);
    }
}
