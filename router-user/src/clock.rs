//! The one place where time is read. Everything that decides takes `now` as an argument instead.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A monotonic clock that starts at zero.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Time since the clock was started; never goes back.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Wall-clock time in ms since the Unix epoch, for what people and other machines read; never for
/// measuring.
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// A monotonic time, in ms since the data plane started.
pub type Millis = u64;
