//! The queue in front of the engine.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::clock;

/// Admits at most the capacity; other requests wait, first come first served.
///
/// Short bursts pass, because the profile's latencies already include the wait below capacity. So
/// this is a bucket that refills at the capacity and holds as many requests as the load measurement
/// averages over.
pub(super) struct Admission {
    capacity_rps: f64,
    depth: f64,
    /// Times that a request takes longer than in a sound engine; >= 1.
    slowness: Cell<f64>,
    state: RefCell<State>,
    arrived: Notify,
}

struct State {
    credit: f64,
    at: Instant,
    waiting: VecDeque<oneshot::Sender<()>>,
}

/// Part of the bucket that is full at the start.
const START_FRAC: f64 = 0.25;

/// Longest queue: 1000 s at 100 requests/s. A longer one would only hold clients that have long
/// gone.
const MAX_WAITING: usize = 100_000;

/// The queue holds [`MAX_WAITING`] requests.
pub(super) struct QueueFull;

impl Admission {
    pub(super) fn new(capacity_rps: f64, window: Duration) -> Self {
        let depth = (capacity_rps * window.as_secs_f64()).max(1.0);
        // A new engine has no idle time behind it, from which a full bucket would come.
        let credit = (depth * START_FRAC).max(1.0);
        let state = RefCell::new(State { credit, at: clock::now(), waiting: VecDeque::new() });
        Self { capacity_rps, depth, slowness: Cell::new(1.0), state, arrived: Notify::new() }
    }

    /// From `now` on requests are admitted `factor` times slower.
    pub(super) fn slow(&self, factor: f64, now: Instant) {
        self.refill(&mut self.state.borrow_mut(), now);
        self.slowness.set(factor);
    }

    /// `None`: start at once. Otherwise start when the receiver completes; dropping it leaves the
    /// queue.
    pub(super) fn enter(&self, now: Instant) -> Result<Option<oneshot::Receiver<()>>, QueueFull> {
        if self.capacity_rps.is_infinite() {
            return Ok(None);
        }
        let mut state = self.state.borrow_mut();
        self.refill(&mut state, now);
        if state.waiting.is_empty() && state.credit >= 1.0 {
            state.credit -= 1.0;
            return Ok(None);
        }
        if state.waiting.len() >= MAX_WAITING {
            state.waiting.retain(|waiter| !waiter.is_closed());
            if state.waiting.len() >= MAX_WAITING {
                return Err(QueueFull);
            }
        }
        let (turn, waiter) = oneshot::channel();
        state.waiting.push_back(turn);
        self.arrived.notify_one();
        Ok(Some(waiter))
    }

    /// Gives waiting requests their turns; runs as long as the engine.
    pub(super) async fn pump(&self) {
        loop {
            let wait = self.turn(clock::now());
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => self.arrived.notified().await,
            }
        }
    }

    /// Admits requests as far as the credit allows and returns when the next is due; `None` when
    /// none waits.
    fn turn(&self, now: Instant) -> Option<Duration> {
        let mut state = self.state.borrow_mut();
        self.refill(&mut state, now);
        while state.credit >= 1.0 {
            let next = state.waiting.pop_front()?;
            if next.send(()).is_ok() {
                state.credit -= 1.0;
            }
        }
        (!state.waiting.is_empty()).then(|| Duration::from_secs_f64((1.0 - state.credit) / self.rate_rps()))
    }

    fn refill(&self, state: &mut State, now: Instant) {
        let elapsed_s = now.saturating_duration_since(state.at).as_secs_f64();
        state.credit = (state.credit + elapsed_s * self.rate_rps()).min(self.depth);
        state.at = now;
    }

    fn rate_rps(&self) -> f64 {
        self.capacity_rps / self.slowness.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_capacity_requests_wait_in_order_and_leavers_cost_nothing() {
        let admission = Admission::new(10.0, Duration::from_millis(200));
        // By then the bucket is full.
        let start = clock::now() + Duration::from_secs(1);
        let at = |ms: u64| start + Duration::from_millis(ms);
        let enter = |ms: u64| admission.enter(at(ms)).unwrap_or_else(|QueueFull| panic!("room for {MAX_WAITING}"));
        assert!(enter(0).is_none() && enter(0).is_none(), "a burst of two fits the bucket");
        let (mut first, second, mut third) = (enter(0).expect("waits"), enter(0).expect("waits"), enter(0).expect("waits"));
        assert!(admission.turn(at(50)).is_some() && first.try_recv().is_err(), "half a credit is none");
        admission.turn(at(101));
        assert!(first.try_recv().is_ok() && third.try_recv().is_err());
        drop(second);
        admission.turn(at(202));
        assert!(third.try_recv().is_ok(), "the one that left does not take a turn");
        assert!(admission.turn(at(202)).is_none());
    }

    #[test]
    fn a_slowed_engine_admits_as_much_less() {
        let admission = Admission::new(10.0, Duration::from_millis(100));
        let start = clock::now() + Duration::from_secs(1);
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(matches!(admission.enter(at(0)), Ok(None)), "the bucket holds one");
        admission.slow(2.0, at(0));
        let Ok(Some(mut turn)) = admission.enter(at(0)) else { panic!("the bucket is empty") };
        admission.turn(at(150));
        assert!(turn.try_recv().is_err(), "at half speed a turn takes 200 ms");
        admission.turn(at(201));
        assert!(turn.try_recv().is_ok());
    }

    #[test]
    fn a_load_below_capacity_never_waits() {
        let start = clock::now();
        let admission = Admission::new(100.0, Duration::from_secs(2));
        for arrival in 0..2000_u64 {
            let now = start + Duration::from_micros(arrival * 10_500);
            assert!(matches!(admission.enter(now), Ok(None)), "arrival {arrival}");
        }
    }
}
