//! How many requests may wait for their first token at one engine. Pure.
//!
//! While an engine is quick there is no limit. When it is full ([`Fullness`]), what waits there is
//! cut to what leaves the first token in time; the rest waits here, where it can be served in a
//! fair order. The limit follows the quickest first token of each look, up and down, and ends when
//! nobody has reached it for a while. It bounds requests without a first token and not those in
//! flight: how long answers are does not matter, and the engine keeps as many running as it can.
//!
//! A cut must be worth it. In front of a queue it makes first tokens quicker and loses no
//! throughput. When it does not, the engine takes that long by itself and the expectation is wrong:
//! the cut is taken back, and so much is tolerated from then on.

use super::Millis;
use super::fullness::{Fullness, Look};

/// Smallest limit: an engine that gets nothing shows nothing.
const LIMIT_MIN: f64 = 1.0;
/// Largest change of the limit in one look, as factors.
const CUT_MOST: f64 = 0.5;
const GROWTH_MOST: f64 = 1.25;
/// A series of cuts is judged when this fraction is left of what waited.
const JUDGED_AT: f64 = 0.6;
/// Delay that is tolerated after a cut was taken back, as a multiple of the delay at that time.
const TOLERATED: f64 = 1.25;
/// Time, in ms, in which a tolerated excess of delay halves: the engine may have been slow for a
/// reason that has passed.
const TOLERATED_HALF_MS: f64 = 600_000.0;
/// Time, in ms, without a request at the limit after which there is none.
const UNUSED_MS: Millis = 5_000;
/// Cut for a refusal, and the shortest time, in ms, between two such cuts: refusals of one moment
/// are one sign.
const REFUSED_CUT: f64 = 0.8;
const REFUSED_PAUSE_MS: Millis = 250;

/// The limit of one engine.
#[derive(Clone, Debug)]
pub struct Limit {
    fullness: Fullness,
    limit: Option<f64>,
    /// When the limit changed. Requests sent before say nothing about it.
    changed_at: Millis,
    /// When a request last was at the limit.
    reached_at: Millis,
    was_reached: bool,
    /// Most requests that waited in this look.
    peak: usize,
    /// Delay that is tolerated, as a multiple of what is allowed; >= 1.
    tolerated: f64,
    tolerated_at: Millis,
    /// As it was before the present series of cuts.
    before: Option<Look>,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            fullness: Fullness::default(),
            limit: None,
            changed_at: 0,
            reached_at: 0,
            was_reached: false,
            peak: 0,
            tolerated: 1.0,
            tolerated_at: 0,
            before: None,
        }
    }
}

impl Limit {
    /// The most requests that may wait for their first token; `None` without a limit.
    pub fn limit(&self) -> Option<usize> {
        self.limit.map(|limit| limit as usize)
    }

    /// When the evidence that the engine is full expires; 0 without any.
    pub fn full_until(&self) -> Millis {
        self.fullness.full_until()
    }

    /// Notes that a request was at the limit.
    pub fn reached(&mut self, now: Millis) {
        (self.was_reached, self.reached_at) = (true, now);
    }

    /// Takes the delay of a first token, as a multiple of what is allowed, of a request that was
    /// sent at `sent_at`; and how many waited for theirs with it.
    pub fn answered(&mut self, now: Millis, sent_at: Millis, delay: f64, waiting: usize) {
        if self.limit.is_some() && now.saturating_sub(self.reached_at) > UNUSED_MS {
            self.set(now, None);
        }
        if sent_at < self.changed_at {
            return;
        }
        self.peak = self.peak.max(waiting);
        self.forget_tolerance(now);
        if let Some(look) = self.fullness.answered(now, delay / self.tolerated) {
            self.follow(now, look);
            (self.peak, self.was_reached) = (0, false);
        }
    }

    /// Takes the engine's own word: it refused a request for want of room while `waiting` waited.
    pub fn refused(&mut self, now: Millis, waiting: usize) {
        self.fullness.refused(now);
        if now.saturating_sub(self.changed_at) >= REFUSED_PAUSE_MS {
            let limit = self.limit.unwrap_or(f64::INFINITY).min(waiting.max(1) as f64);
            self.reached(now);
            self.set(now, Some(REFUSED_CUT * limit));
        }
    }

    fn follow(&mut self, now: Millis, look: Look) {
        let limit = self.limit.unwrap_or(self.peak as f64);
        if look.least <= 1.0 {
            self.before = None;
            if self.limit.is_some() && self.was_reached {
                self.set(now, Some((limit * (1.0 / look.least).min(GROWTH_MOST)).max(limit + 1.0)));
            }
            return;
        }
        // With one request at a time the delay is not of our making; and a limit that nobody was at
        // has not been tried.
        if self.peak < 2 || (self.limit.is_some() && !self.was_reached) {
            return;
        }
        // By Little's law, what waits is the delay times the throughput. When a cut has shortened a
        // queue, the delay has come down with it; when there was none, the throughput has.
        let before = *self.before.get_or_insert(look);
        let (delay, rate) = (look.least / before.least, look.rate / before.rate);
        let left = delay * rate;
        if left <= JUDGED_AT && delay > rate {
            self.tolerated *= TOLERATED * look.least;
            self.fullness = Fullness::default();
            return self.set(now, None);
        }
        if left <= JUDGED_AT || left > 1.0 {
            self.before = Some(look);
        }
        self.reached(now);
        self.set(now, Some(limit * (1.0 / look.least).max(CUT_MOST)));
    }

    fn set(&mut self, now: Millis, limit: Option<f64>) {
        self.limit = limit.map(|limit| limit.max(LIMIT_MIN));
        self.changed_at = now;
        if limit.is_none() {
            self.before = None;
        }
    }

    fn forget_tolerance(&mut self, now: Millis) {
        let elapsed_ms = now.saturating_sub(self.tolerated_at) as f64;
        self.tolerated_at = now;
        self.tolerated = 1.0 + (self.tolerated - 1.0) * 0.5_f64.powf(elapsed_ms / TOLERATED_HALF_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of an engine as `limit` lets them be: of `offered` requests that want to wait there
    /// at any time, those within the limit do. `first_token_ms` gives the time to the first token,
    /// and `rate` the first tokens per second, of so many that wait. Allowed are 200 ms.
    fn run(
        limit: &mut Limit,
        from: Millis,
        seconds: u64,
        offered: usize,
        first_token_ms: impl Fn(usize) -> f64,
        rate: impl Fn(usize) -> f64,
    ) -> Vec<usize> {
        let (mut at, end) = (from as f64, (from + 1_000 * seconds) as f64);
        let mut seen = Vec::new();
        while at < end {
            let waiting = offered.min(limit.limit().unwrap_or(usize::MAX));
            let now = at as Millis;
            if waiting < offered {
                limit.reached(now);
            }
            let delay_ms = first_token_ms(waiting);
            limit.answered(now, (at - delay_ms).max(0.0) as Millis, delay_ms / 200.0, waiting);
            at += 1_000.0 / rate(waiting);
            seen.push(waiting);
        }
        seen
    }

    #[test]
    fn a_queue_in_an_engine_is_cut_to_what_is_in_time_without_idling_it() {
        let mut limit = Limit::default();
        // 50 requests/s at most, and 100 ms where nothing waits: 5 are in prefill, the rest queues.
        let rate = |waiting: usize| (waiting as f64 / 0.1).min(50.0);
        let ttft = |waiting: usize| waiting as f64 / (waiting as f64 / 0.1).min(50.0) * 1e3;
        let seen = run(&mut limit, 0, 60, 300, ttft, rate);
        let late = &seen[seen.len() / 2..];
        assert!(late.iter().all(|&waiting| (5..=14).contains(&waiting)), "{:?}", late.iter().minmax());
        assert!(limit.full_until() == 0 || limit.limit().is_some());
        // The flood is over.
        run(&mut limit, 60_000, 10, 3, ttft, rate);
        assert_eq!(limit.limit(), None);
    }

    #[test]
    fn an_engine_that_takes_long_by_itself_is_left_alone_soon() {
        let mut limit = Limit::default();
        // 500 ms of its own, however few wait: the expectation was wrong.
        let seen = run(&mut limit, 0, 60, 40, |_| 500.0, |waiting| waiting as f64 / 0.5);
        let late = &seen[seen.len() / 2..];
        assert!(late.iter().all(|&waiting| waiting == 40), "{:?}", late.iter().minmax());
        assert_eq!((limit.limit(), limit.full_until()), (None, 0));
    }

    #[test]
    fn an_engine_that_refuses_is_given_less_until_it_takes_what_it_gets() {
        let mut limit = Limit::default();
        (0..20).for_each(|nth| limit.refused(1_000 + 10 * nth, 40));
        assert_eq!(limit.limit(), Some(32), "refusals of one moment are one sign");
        assert!(limit.full_until() > 1_000);
        limit.refused(2_000, 32);
        assert_eq!(limit.limit(), Some(25));
        (0..200).for_each(|nth| limit.refused(3_000 + 300 * nth, 1));
        assert_eq!(limit.limit(), Some(1));
        run(&mut limit, 70_000, 20, 40, |_| 100.0, |waiting| waiting as f64 / 0.1);
        assert!(limit.limit().is_none_or(|limit| limit >= 40));
    }

    #[test]
    fn few_requests_at_a_time_are_never_limited() {
        let mut limit = Limit::default();
        run(&mut limit, 0, 60, 1, |_| 5_000.0, |_| 5.0);
        assert_eq!(limit.limit(), None);
        assert!(limit.full_until() > 0, "but it is evidence: somebody else fills the engine");
    }

    trait MinMax {
        fn minmax(self) -> Option<(usize, usize)>;
    }

    impl<'a, I: Iterator<Item = &'a usize> + Clone> MinMax for I {
        fn minmax(self) -> Option<(usize, usize)> {
            Some((*self.clone().min()?, *self.max()?))
        }
    }
}
