//! When a live controller was last heard of.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;

/// The last sign of life of a controller.
#[derive(Debug)]
pub(super) struct ControllerHeartbeat {
    clock: Clock,
    /// In ms since the clock's start.
    last_ms: AtomicU64,
}

impl ControllerHeartbeat {
    /// Counts silence from now: a data plane that starts without a controller waits for one as long
    /// as for one that went silent.
    pub(super) fn new(clock: Clock) -> Self {
        let heartbeat = Self { clock, last_ms: AtomicU64::new(0) };
        heartbeat.renew();
        heartbeat
    }

    pub(super) fn renew(&self) {
        self.last_ms.store(self.clock.now().as_millis() as u64, Ordering::Relaxed);
    }

    /// How long no controller has been heard of.
    pub(super) fn silence(&self) -> Duration {
        self.clock.now().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}
