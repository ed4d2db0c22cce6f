//! A limit for log lines of which every request or connection can cause one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Clock, Millis};

/// Time between two lines of one kind, in ms: often enough to follow an outage as it goes on, rare
/// enough that one that lasts a day fills no disk.
const INTERVAL_MS: Millis = 1_000;

/// The limit of one kind of line, shared by all threads. [`limited!`](crate::telemetry::limited)
/// makes one for each place in the code.
#[derive(Debug, Default)]
pub struct LogLimit {
    /// When the next line may be written.
    next: AtomicU64,
    withheld: AtomicU64,
}

impl LogLimit {
    pub const fn new() -> Self {
        Self { next: AtomicU64::new(0), withheld: AtomicU64::new(0) }
    }

    /// How many lines were withheld since the last one, if a line may be written now. `None` counts
    /// one more.
    pub fn admit(&self, now: Millis) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let is_first = || self.next.compare_exchange(next, now + INTERVAL_MS, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if now >= next && is_first() {
            return Some(self.withheld.swap(0, Ordering::Relaxed));
        }
        self.withheld.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// [`Self::admit`] by the process's own clock.
    pub fn admit_now(&self) -> Option<u64> {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        let now = CLOCK.get_or_init(Clock::start).now();
        self.admit(Millis::try_from(now.as_millis()).unwrap_or(Millis::MAX - INTERVAL_MS))
    }
}

/// Writes a line as the macros of `tracing` do, at most one per second from this place in the code,
/// with the number of lines that were `withheld` since the last one.
macro_rules! limited {
    ($level:ident, $($line:tt)+) => {{
        static LIMIT: $crate::telemetry::LogLimit = $crate::telemetry::LogLimit::new();
        if let Some(withheld) = LIMIT.admit_now() {
            tracing::$level!(withheld, $($line)+);
        }
    }};
}

pub(crate) use limited;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_second_with_the_count_of_those_withheld() {
        let limit = LogLimit::new();
        assert_eq!(limit.admit(5), Some(0), "the first line is written at once");
        let lines = (6..5 + INTERVAL_MS).filter(|&now| limit.admit(now).is_some()).count();
        assert_eq!(lines, 0);
        assert_eq!(limit.admit(5 + INTERVAL_MS), Some(INTERVAL_MS - 1));
        assert_eq!(limit.admit(5 + INTERVAL_MS), None);
        assert_eq!(limit.admit(90_000), Some(1), "whatever time has passed");
    }

    #[test]
    fn of_many_threads_one_writes_and_every_line_is_counted() {
        let limit = LogLimit::new();
        let written: usize = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..1000).filter(|_| limit.admit(0).is_some()).count())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((written, limit.admit(INTERVAL_MS)), (1, Some(3999)));
    }
}
