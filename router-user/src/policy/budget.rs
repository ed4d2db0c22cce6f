//! The retry budget of a data plane: requests earn credit and resends spend it, so that resends add
//! no more than a known fraction of load.
//!
//! The unit of credit is the mean request of late. A resend costs what the request weighs beside
//! that mean, and more while the engines are busy: beside full engines no credit is enough, because
//! load that comes back is what keeps an overload alive.

use super::Millis;

/// Credit that one request earns: one resend per five requests, as in Envoy, tower and Finagle.
const CREDIT_PER_REQUEST: f64 = 0.2;
/// Credit per second that is earned without requests, for a data plane with little traffic.
const FLOOR_PER_S: f64 = 1.0;
/// Credit at the start.
const CREDIT_AT_START: f64 = 10.0;
/// Time for which credit is kept, in ms, one to two times: longer than the prefill of the longest
/// usual prompts, so that a request that fails after it still finds the credit of the requests
/// around it. A quiet hour does not pay for a storm.
const WINDOW_MS: Millis = 60_000;
/// Credit that can be saved up however little traffic there is: the requests that one engine has in
/// flight when it fails.
const SAVINGS_MIN: f64 = 50.0;
/// Least and greatest price of a resend beside idle engines, in mean requests. A request whose work
/// is misjudged is neither free nor without hope.
const WEIGHT: (f64, f64) = (0.25, 4.0);
/// Utilisation of the engines, 0 to 1, from which on a resend costs more; at 1 none is allowed. The
/// rest is what bears the failure of an engine.
const UTILISATION_CALM: f64 = 0.7;

/// Bytes of a request's JSON per token of its prompt, of the usual tokenizers and languages.
const BYTES_PER_TOKEN: f64 = 4.0;
/// Work of one output token in prompt tokens: an iteration of 20 ms makes one token for each of 64
/// sequences, and prefill reads some 25,000 tokens/s.
const OUTPUT_TOKEN_WORK: f64 = 8.0;

/// Expected work of a request, in prompt tokens.
pub fn expected_work(body_bytes: usize, output_tokens: f64) -> f64 {
    body_bytes as f64 / BYTES_PER_TOKEN + OUTPUT_TOKEN_WORK * output_tokens
}

/// Requests that have arrived, and the sum of their expected work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrivals {
    requests: u64,
    work: f64,
}

impl Arrivals {
    pub fn add(&mut self, work: f64) {
        self.requests += 1;
        self.work += work;
    }

    fn plus(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, work: self.work + other.work }
    }
}

#[derive(Clone, Debug)]
pub struct RetryBudget {
    credit: f64,
    /// When the floor was last paid.
    at: Millis,
    window_start: Millis,
    /// Arrivals of this window and of the one before.
    arrivals: [Arrivals; 2],
}

impl RetryBudget {
    pub fn new(now: Millis) -> Self {
        Self { credit: CREDIT_AT_START, at: now, window_start: now, arrivals: [Arrivals::default(); 2] }
    }

    /// Adds the credit of requests that have arrived for the first time.
    pub fn earn(&mut self, now: Millis, arrivals: Arrivals) {
        self.turn(now);
        self.arrivals[0] = self.arrivals[0].plus(arrivals);
        self.credit = (self.credit + CREDIT_PER_REQUEST * arrivals.requests as f64).min(self.savings_max());
    }

    /// Takes the price of sending a request of `work` again, to engines whose utilisation is 0 to
    /// 1. False, and nothing is taken, without the credit for it.
    pub fn spend(&mut self, now: Millis, work: f64, utilisation: f64) -> bool {
        self.turn(now);
        let share = (1.0 - utilisation) / (1.0 - UTILISATION_CALM);
        let price = self.weight(work) / share.clamp(0.0, 1.0);
        let can = price <= self.credit;
        if can {
            self.credit -= price;
        }
        can
    }

    /// The weight of a request of `work` in mean requests.
    fn weight(&self, work: f64) -> f64 {
        let all = self.arrivals[0].plus(self.arrivals[1]);
        let weight = if all.work > 0.0 { work * all.requests as f64 / all.work } else { 1.0 };
        weight.clamp(WEIGHT.0, WEIGHT.1)
    }

    /// Pays the floor, and forgets credit from before the last two windows.
    fn turn(&mut self, now: Millis) {
        let elapsed_s = now.saturating_sub(self.at) as f64 / 1000.0;
        self.at = self.at.max(now);
        match now.saturating_sub(self.window_start) / WINDOW_MS {
            0 => {}
            windows => {
                self.arrivals = [Arrivals::default(), if windows == 1 { self.arrivals[0] } else { Arrivals::default() }];
                self.window_start += windows * WINDOW_MS;
            }
        }
        self.credit = (self.credit + elapsed_s * FLOOR_PER_S).min(self.savings_max());
    }

    fn savings_max(&self) -> f64 {
        (CREDIT_PER_REQUEST * self.arrivals[0].plus(self.arrivals[1]).requests as f64).max(SAVINGS_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: f64 = 0.0;

    fn requests(count: u64, work: f64) -> Arrivals {
        Arrivals { requests: count, work: count as f64 * work }
    }

    /// Resends of `work` that the budget allows in one moment.
    fn drain(budget: &mut RetryBudget, now: Millis, work: f64, utilisation: f64) -> usize {
        std::iter::from_fn(|| budget.spend(now, work, utilisation).then_some(())).count()
    }

    #[test]
    fn resends_stay_within_a_fifth_of_requests_plus_floor_and_start() {
        let mut budget = RetryBudget::new(0);
        let mut resends = 0;
        for request in 0..10_000u64 {
            budget.earn(request / 10, requests(1, 100.0));
            // Ten requests per ms, all of which fail.
            resends += u64::from(budget.spend(request / 10, 100.0, IDLE));
        }
        let bound = 10_000.0 * CREDIT_PER_REQUEST + 1.0 * FLOOR_PER_S + CREDIT_AT_START;
        assert!(resends as f64 <= bound && resends as f64 >= 10_000.0 * CREDIT_PER_REQUEST, "{resends} of at most {bound}");
    }

    #[test]
    fn the_floor_refills_with_time_up_to_the_maximum_and_a_clock_that_stands_or_jumps_back_gives_nothing() {
        let mut budget = RetryBudget::new(1000);
        let mut left = |now| drain(&mut budget, now, 1.0, IDLE);
        assert_eq!([left(1000), left(4000), left(2000), left(4_000_000)], [10, 3, 0, SAVINGS_MIN as usize]);
    }

    #[test]
    fn savings_grow_with_traffic_and_expire_with_it() {
        let saved = |idle_ms: Millis| {
            let mut budget = RetryBudget::new(0);
            // A hundred requests per second for three windows, none of which is sent again.
            (0..18_000u64).for_each(|n| budget.earn(10 * n, requests(1, 1.0)));
            drain(&mut budget, 180_000 + idle_ms, 1.0, IDLE) as f64
        };
        let a_window = WINDOW_MS as f64 / 10.0 * CREDIT_PER_REQUEST;
        // Half a minute of prefill later, the credit of the requests around it is still there.
        assert!((a_window..=2.0 * a_window + 1.0).contains(&saved(30_000)), "{}", saved(30_000));
        assert_eq!(saved(2 * WINDOW_MS), SAVINGS_MIN);
    }

    #[test]
    fn a_resend_costs_what_the_request_weighs_beside_the_mean_within_bounds() {
        let left = |work| {
            let mut budget = RetryBudget::new(0);
            // 400 requests leave a credit of 80.
            budget.earn(0, requests(400, 1000.0));
            drain(&mut budget, 0, work, IDLE)
        };
        assert_eq!([1000.0, 2000.0, 500.0].map(left), [80, 40, 160]);
        assert_eq!([1e9, 0.0].map(left), [20, 320], "at most four mean requests, at least a quarter");
        assert!(
            expected_work(40_000, 100.0) > expected_work(400, 100.0) && expected_work(400, 1000.0) > expected_work(400, 10.0)
        );
    }

    #[test]
    fn the_budget_shrinks_as_engines_fill_and_is_nothing_beside_full_ones() {
        let left = |utilisation| {
            let mut budget = RetryBudget::new(0);
            budget.earn(0, requests(400, 1.0));
            drain(&mut budget, 0, 1.0, utilisation)
        };
        assert_eq!([0.0, 0.7, 0.849, 0.9699].map(left), [80, 80, 40, 8]);
        assert_eq!([1.0, 1.5].map(left), [0, 0]);
    }
}
