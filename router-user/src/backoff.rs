//! Growing pauses between attempts that fail. Pure: the caller sleeps.

use std::time::Duration;

/// The pauses after failures in a row: the first one, then twice the last one, up to a longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The pause after one more failure.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// Starts again with the first pause, after an attempt that succeeded.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again_after_a_success() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(350));
        let pauses: Vec<Duration> = (0..4).map(|_| backoff.pause()).collect();
        assert_eq!(pauses, [ms(100), ms(200), ms(350), ms(350)]);
        backoff.reset();
        assert_eq!((backoff.pause(), backoff.pause()), (ms(100), ms(200)));
    }

    #[test]
    fn the_longest_pause_may_be_the_longest_time_there_is() {
        let mut backoff = Backoff::new(Duration::MAX / 2, Duration::MAX);
        assert_eq!((backoff.pause(), backoff.pause()), (Duration::MAX / 2, Duration::MAX / 2 * 2));
        assert_eq!(backoff.pause(), Duration::MAX);
    }
}
