//! The last signals of one engine, their age, and how far they can be trusted. Pure.

use std::time::Duration;

use super::scrape::ScrapeError;
use super::signals::EngineSignals;

/// The last signals of one engine, and the error of the last scrape.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    last: Option<(Duration, EngineSignals)>,
    error: Option<ScrapeError>,
    /// True once a page had as many ranks as the engine has replicas. From then on, fewer ranks are
    /// fewer replicas. Behind a plain balancer, a page shows one replica of several and never all.
    shows_all: bool,
}

impl Reading {
    /// Takes the outcome of a scrape, at `now`, of an engine with `replicas` replicas.
    pub fn take(&mut self, now: Duration, replicas: u32, outcome: Result<EngineSignals, ScrapeError>) {
        match outcome {
            Ok(signals) => {
                self.shows_all |= signals.ranks.is_some_and(|ranks| ranks >= replicas);
                self.last = Some((now, signals));
                self.error = None;
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// The last signals, if they are at most `max_age` old.
    pub fn signals(&self, now: Duration, max_age: Duration) -> Option<&EngineSignals> {
        self.last.as_ref().filter(|(at, _)| now.saturating_sub(*at) <= max_age).map(|(_, signals)| signals)
    }

    /// Time of the last signals; `None` before the first.
    pub fn at(&self) -> Option<Duration> {
        self.last.as_ref().map(|(at, _)| *at)
    }

    /// The error of the last scrape; `None` after a success.
    pub fn error(&self) -> Option<&ScrapeError> {
        self.error.as_ref()
    }

    /// Ready replicas by the engine's own metrics, at most `replicas`; `None` if they do not show,
    /// or are older than `max_age`.
    pub fn ready_replicas(&self, now: Duration, max_age: Duration, replicas: u32) -> Option<u32> {
        let signals = self.signals(now, max_age)?;
        let counted = signals.ready_replicas.or(signals.ranks.filter(|_| self.shows_all));
        counted.map(|count| count.min(replicas))
    }

    /// Requests in the whole engine; `None` if the signals are older than `max_age`, or show some
    /// of its replicas only.
    pub fn in_engine(&self, now: Duration, max_age: Duration) -> Option<f64> {
        self.signals(now, max_age).filter(|_| self.shows_all)?.in_engine()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::from_metrics;

    const MAX_AGE: Duration = Duration::from_secs(15);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ranks(count: usize) -> Result<EngineSignals, ScrapeError> {
        let page = |engine| {
            format!("vllm:num_requests_running{{engine=\"{engine}\"}} 2\nvllm:num_requests_waiting{{engine=\"{engine}\"}} 1\n")
        };
        Ok(from_metrics((0..count).map(page).collect::<String>().as_bytes()).expect("known"))
    }

    #[test]
    fn ranks_count_as_replicas_once_all_of_them_were_seen() {
        let mut reading = Reading::default();
        reading.take(at(0), 4, ranks(1));
        assert_eq!(reading.ready_replicas(at(0), MAX_AGE, 4), None, "one replica among several behind a balancer");
        assert_eq!(reading.in_engine(at(0), MAX_AGE), None);
        reading.take(at(5), 4, ranks(4));
        assert_eq!((reading.ready_replicas(at(5), MAX_AGE, 4), reading.in_engine(at(5), MAX_AGE)), (Some(4), Some(12.0)));
        reading.take(at(10), 4, ranks(3));
        assert_eq!(reading.ready_replicas(at(10), MAX_AGE, 4), Some(3));
        reading.take(at(15), 4, ranks(9));
        assert_eq!(reading.ready_replicas(at(15), MAX_AGE, 4), Some(4), "never more than there are");
    }

    #[test]
    fn old_words_are_unknown_and_errors_last_until_success() {
        let mut reading = Reading::default();
        assert_eq!(reading.at(), None);
        reading.take(at(0), 1, ranks(1));
        reading.take(at(5), 1, Err(ScrapeError::TimedOut));
        assert_eq!((reading.in_engine(at(15), MAX_AGE), reading.at()), (Some(3.0), Some(at(0))));
        assert_eq!(reading.in_engine(at(16), MAX_AGE), None);
        assert!(matches!(reading.error(), Some(ScrapeError::TimedOut)));
        reading.take(at(20), 1, ranks(1));
        assert!(reading.error().is_none());
    }

    #[test]
    fn a_routers_count_needs_no_history() {
        let page = b"smg_worker_health{worker=\"a\"} 1\nsmg_worker_health{worker=\"b\"} 0\n";
        let mut reading = Reading::default();
        reading.take(at(0), 2, Ok(from_metrics(page).expect("known")));
        assert_eq!(reading.ready_replicas(at(0), MAX_AGE, 2), Some(1));
    }
}
