//! What all workers of a data plane know together of an engine's load.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::policy::Millis;
use crate::policy::fullness::{Fullness, allowed_ms};
use crate::publish::snapshot::{ClassEntry, EngineEntry};

/// Delay of a first token, in ms, that nobody minds: below what people notice.
const SLACK_MS: f64 = 100.0;
/// Time to the first token at capacity, in ms, of an engine whose snapshot does not say it: that of
/// a prompt of some thousand tokens on a busy engine.
const TTFT_UNKNOWN_MS: f64 = 1_000.0;

/// One engine's load.
#[derive(Debug, Default)]
pub(super) struct EngineLoad {
    in_flight: AtomicUsize,
    /// When the evidence that the engine is full expires.
    full_until: AtomicU64,
    fullness: Mutex<Fullness>,
}

impl EngineLoad {
    /// Counts a request as in flight, until [`Self::end`].
    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Requests in flight, of all workers.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether the engine has confirmed lately that it is full.
    pub(super) fn is_full(&self, now: Millis) -> bool {
        now < self.full_until.load(Ordering::Relaxed)
    }

    /// Takes how an answer began: its status and delay, and what is allowed. Times in ms.
    pub(super) fn answered(&self, now: Millis, status: u16, delay_ms: f64, allowed_ms: f64) {
        let mut fullness = self.fullness.lock();
        match status {
            200..=299 => fullness.answered(now, delay_ms / allowed_ms),
            429 | 503 => fullness.refused(now),
            _ => return,
        }
        self.full_until.store(fullness.full_until(), Ordering::Relaxed);
    }
}

/// Longest time, in ms, in which an answer begins while its engine is not full.
pub(super) fn allowed_for(expected_ms: f64) -> f64 {
    allowed_ms(expected_ms, SLACK_MS)
}

/// Time, in ms, in which an answer begins at capacity. A stream begins with its first token, any
/// other answer with its last.
pub(super) fn expected_for(engine: &EngineEntry, class: &ClassEntry, is_stream: bool) -> f64 {
    let ttft_ms = if engine.full_ttft_ms > 0.0 { engine.full_ttft_ms } else { TTFT_UNKNOWN_MS };
    let rest_ms = if is_stream { 0.0 } else { class.output_tokens * engine.full_tbot_ms };
    ttft_ms + rest_ms
}

/// The loads of all engines of a data plane.
#[derive(Debug, Default)]
pub(super) struct EngineLoads(Mutex<HashMap<(String, SocketAddr), Arc<EngineLoad>>>);

impl EngineLoads {
    /// The load of the engine at an address. Engines that no worker knows any more are forgotten.
    pub(super) fn of(&self, name: &str, address: SocketAddr) -> Arc<EngineLoad> {
        let mut loads = self.0.lock();
        loads.retain(|_, load| Arc::strong_count(load) > 1);
        Arc::clone(loads.entry((name.to_owned(), address)).or_default())
    }
}
