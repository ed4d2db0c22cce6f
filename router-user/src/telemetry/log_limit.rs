//! A limit for log lines of which every request or connection can cause one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Clock, Millis};

/// Least time between two lines of one kind, in ms: a person follows an outage by it.
const INTERVAL_MIN_MS: Millis = 1_000;
/// Longest time between two lines while their cause lasts, in ms: an outage of a day is some 1,500
/// lines.
const INTERVAL_MAX_MS: Millis = 60_000;

/// The limit of one kind of line, shared by all threads. [`limited!`](crate::telemetry::limited)
/// makes one for each place in the code.
#[derive(Debug, Default)]
pub struct LogLimit {
    /// When the next line may be written.
    next: AtomicU64,
    /// Time from the last line to `next`: doubled by each line that follows at once.
    interval: AtomicU64,
    withheld: AtomicU64,
}

impl LogLimit {
    pub const fn new() -> Self {
        Self { next: AtomicU64::new(0), interval: AtomicU64::new(0), withheld: AtomicU64::new(0) }
    }

    /// How many lines were withheld since the last one, if a line may be written now. `None` counts
    /// one more.
    pub fn admit(&self, now: Millis) -> Option<u64> {
        let (next, interval) = (self.next.load(Ordering::Relaxed), self.interval.load(Ordering::Relaxed));
        let has_been_quiet = now >= next.saturating_add(interval);
        let longer = if has_been_quiet { INTERVAL_MIN_MS } else { (2 * interval).min(INTERVAL_MAX_MS) };
        let is_first = || self.next.compare_exchange(next, now + longer, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if now >= next && is_first() {
            self.interval.store(longer, Ordering::Relaxed);
            return Some(self.withheld.swap(0, Ordering::Relaxed));
        }
        self.withheld.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// [`Self::admit`] by the process's own clock.
    pub fn admit_now(&self) -> Option<u64> {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        let now = CLOCK.get_or_init(Clock::start).now();
        self.admit(Millis::try_from(now.as_millis()).unwrap_or(Millis::MAX - INTERVAL_MAX_MS))
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
    fn lines_come_once_a_second_and_ever_less_often_with_the_count_of_those_withheld() {
        let limit = LogLimit::new();
        assert_eq!(limit.admit(5), Some(0), "the first line is written at once");
        assert!((6..1005).all(|now| limit.admit(now).is_none()));
        assert_eq!(limit.admit(1005), Some(999));
        assert!((1006..3005).all(|now| limit.admit(now).is_none()));
        assert_eq!(limit.admit(3005), Some(1999));
        // A day of one every 100 ms.
        let lines = (0..864_000).filter(|n| limit.admit(3006 + 100 * n).is_some()).count();
        assert!((1_440..1_460).contains(&lines), "{lines}");
        // Once the cause is gone for as long as its lines were apart, the next one is news.
        let later = 3006 + 86_400_000 + 2 * INTERVAL_MAX_MS;
        assert!(limit.admit(later).is_some());
        assert_eq!(limit.admit(later + INTERVAL_MIN_MS - 1), None);
        assert_eq!(limit.admit(later + INTERVAL_MIN_MS), Some(1));
    }

    #[test]
    fn of_many_threads_one_writes_and_every_line_is_counted() {
        let limit = LogLimit::new();
        let written: usize = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..1000).filter(|_| limit.admit(0).is_some()).count())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((written, limit.admit(INTERVAL_MIN_MS)), (1, Some(3999)));
    }
}
