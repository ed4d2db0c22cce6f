//! The retry budget: requests earn credit and retries spend it, so that retries add no more than a
//! known fraction of load.

use super::Millis;

/// Retries that one request earns: one per five requests, as in Envoy, tower and Finagle.
const CREDIT_PER_REQUEST: f64 = 0.2;
/// Retries per second that are allowed without requests, for a worker with little traffic.
const FLOOR_PER_S: f64 = 1.0;
/// Time for which credit is kept, in ms, as in tower's budget. A retry after a prefill of some
/// seconds still finds the credit of the requests around it; a quiet hour does not pay for a storm.
const WINDOW_MS: Millis = 10_000;
/// Retries that can be saved up however little traffic there is: the requests that one engine has
/// in flight when it fails.
const SAVINGS_MIN: f64 = 50.0;

#[derive(Clone, Debug)]
pub struct RetryBudget {
    credit: f64,
    /// When the floor was last paid.
    at: Millis,
    window_start: Millis,
    /// Credit earned in this window and in the one before.
    earned: [f64; 2],
}

impl RetryBudget {
    /// A budget with the credit of the floor for one window.
    pub fn new(now: Millis) -> Self {
        Self { credit: WINDOW_MS as f64 / 1000.0 * FLOOR_PER_S, at: now, window_start: now, earned: [0.0; 2] }
    }

    /// Adds the credit of a request that has arrived.
    pub fn earn(&mut self, now: Millis) {
        self.turn(now);
        self.earned[0] += CREDIT_PER_REQUEST;
        self.credit = (self.credit + CREDIT_PER_REQUEST).min(self.savings_max());
    }

    /// Takes the price of one retry. False, and nothing is taken, without the credit for it.
    pub fn spend(&mut self, now: Millis) -> bool {
        self.turn(now);
        let can = self.credit >= 1.0;
        if can {
            self.credit -= 1.0;
        }
        can
    }

    /// Pays the floor, and forgets credit from before the last two windows.
    fn turn(&mut self, now: Millis) {
        let elapsed_s = now.saturating_sub(self.at) as f64 / 1000.0;
        self.at = self.at.max(now);
        match now.saturating_sub(self.window_start) / WINDOW_MS {
            0 => {}
            windows => {
                self.earned = if windows == 1 { [0.0, self.earned[0]] } else { [0.0; 2] };
                self.window_start += windows * WINDOW_MS;
            }
        }
        self.credit = (self.credit + elapsed_s * FLOOR_PER_S).min(self.savings_max());
    }

    fn savings_max(&self) -> f64 {
        (self.earned[0] + self.earned[1]).max(SAVINGS_MIN)
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
            budget.earn(request / 10);
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
        assert_eq!(drain(&mut budget, 4_000_000), SAVINGS_MIN as usize);
    }

    #[test]
    fn savings_grow_with_traffic_and_expire_with_it() {
        let saved = |idle_ms: Millis| {
            let mut budget = RetryBudget::new(0);
            // A thousand requests per second for 30 s, none of which needs a retry.
            (0..30_000u64).for_each(|ms| budget.earn(ms));
            std::iter::from_fn(|| budget.spend(30_000 + idle_ms).then_some(())).count() as f64
        };
        let a_window = WINDOW_MS as f64 * CREDIT_PER_REQUEST;
        // An engine with a second's worth of requests in prefill may die.
        assert!((a_window..=2.0 * a_window).contains(&saved(0)), "{}", saved(0));
        assert_eq!(saved(2 * WINDOW_MS), SAVINGS_MIN);
    }
}
