//! What all workers of a data plane know together of an engine's load.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::policy::Millis;
use crate::policy::admission::Place;
use crate::policy::fullness::allowed_ms;
use crate::policy::limit::Limit;
use crate::publish::snapshot::{ClassEntry, EngineEntry};

/// Delay of a first token, in ms, that nobody minds: below what people notice.
const SLACK_MS: f64 = 100.0;
/// Time to the first token at capacity, in ms, of an engine whose snapshot does not say it: that of
/// a prompt of some thousand tokens on a busy engine.
const TTFT_UNKNOWN_MS: f64 = 1_000.0;

/// One engine's load.
#[derive(Debug)]
pub(super) struct EngineLoad {
    /// The engine's number in the queue.
    pub(super) place: Place,
    in_flight: AtomicUsize,
    /// Requests in flight that have no first token yet.
    waiting: AtomicUsize,
    /// Most of those; `usize::MAX` without a limit.
    limit: AtomicUsize,
    /// A request was at the limit since the last answer.
    was_reached: AtomicBool,
    /// When the evidence that the engine is full expires.
    full_until: AtomicU64,
    control: Mutex<Limit>,
}

impl EngineLoad {
    /// Requests in flight, of all workers.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn new(place: Place) -> Self {
        Self {
            place,
            in_flight: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
            was_reached: AtomicBool::new(false),
            full_until: AtomicU64::new(0),
            control: Mutex::default(),
        }
    }

    /// Whether the engine has confirmed lately that it is full.
    pub(super) fn is_full(&self, now: Millis) -> bool {
        now < self.full_until.load(Ordering::Relaxed)
    }

    /// Whether the engine may be given one more request, of `in_flight_max` at a time, and within
    /// the limit if it `is_limited`. Workers that look in the same moment may all find the last
    /// place.
    pub(super) fn has_room(&self, in_flight_max: usize, is_limited: bool) -> bool {
        if is_limited && self.waiting.load(Ordering::SeqCst) >= self.limit.load(Ordering::Relaxed) {
            self.was_reached.store(true, Ordering::Relaxed);
            return false;
        }
        self.in_flight.load(Ordering::SeqCst) < in_flight_max
    }

    /// Takes a place for a request.
    pub(super) fn enter(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    /// The request has its first token, or has come to nothing.
    pub(super) fn end_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }

    /// The request does not come to the place that it has taken.
    pub(super) fn give_up(&self) {
        self.end_waiting();
        self.leave();
    }

    /// Takes how an answer began: its status and delay, and what is allowed. Times in ms.
    pub(super) fn answered(&self, now: Millis, status: u16, delay_ms: f64, allowed_ms: f64) {
        let waiting = self.waiting.load(Ordering::Relaxed);
        let mut control = self.control.lock();
        if self.was_reached.swap(false, Ordering::Relaxed) {
            control.reached(now);
        }
        match status {
            200..=299 => control.answered(now, now.saturating_sub(delay_ms as Millis), delay_ms / allowed_ms, waiting),
            429 | 503 => control.refused(now, waiting),
            _ => return,
        }
        self.full_until.store(control.full_until(), Ordering::Relaxed);
        self.limit.store(control.limit().unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// The most requests that may wait for their first token; `None` without a limit.
    pub(super) fn limit(&self) -> Option<usize> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit < usize::MAX)
    }
}

/// Longest time, in ms, in which an answer begins while its engine is not full.
pub(super) fn allowed_for(expected_ms: f64) -> f64 {
    allowed_ms(expected_ms, SLACK_MS)
}

/// Time, in ms, in which an answer begins at capacity. A stream begins with its first token, any
/// other answer with its last.
pub(super) fn expected_for(engine: &EngineEntry, class: &ClassEntry, is_stream: bool) -> f64 {
    let rest_ms = if is_stream { 0.0 } else { class.output_tokens * engine.full_tbot_ms };
    expected_ttft_ms(engine) + rest_ms
}

/// TTFT, in ms, that is expected of an engine at capacity.
pub(super) fn expected_ttft_ms(engine: &EngineEntry) -> f64 {
    if engine.full_ttft_ms > 0.0 { engine.full_ttft_ms } else { TTFT_UNKNOWN_MS }
}

/// The loads of all engines of a data plane.
#[derive(Debug, Default)]
pub(super) struct EngineLoads(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    loads: HashMap<(String, SocketAddr), Arc<EngineLoad>>,
    next_place: Place,
}

impl EngineLoads {
    /// The load of the engine at an address. Engines that no worker knows any more are forgotten.
    pub(super) fn of(&self, name: &str, address: SocketAddr) -> Arc<EngineLoad> {
        let mut registry = self.0.lock();
        let Registry { loads, next_place } = &mut *registry;
        loads.retain(|_, load| Arc::strong_count(load) > 1);
        let new = || {
            *next_place = next_place.wrapping_add(1);
            Arc::new(EngineLoad::new(*next_place))
        };
        Arc::clone(loads.entry((name.to_owned(), address)).or_insert_with(new))
    }

    /// Limits in force, by engine.
    pub(super) fn limits(&self) -> Vec<(String, usize)> {
        let registry = self.0.lock();
        registry.loads.iter().filter_map(|((name, _), load)| Some((name.clone(), load.limit()?))).collect()
    }
}
