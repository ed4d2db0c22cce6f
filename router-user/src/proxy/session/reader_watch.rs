//! Detects clients that do not read their answers.
//!
//! A send succeeds while the kernel has buffer space, which is megabytes: a whole stream of events
//! fits. So a client that reads nothing delays no send. Once per `client_stall_timeout` this asks
//! the kernel how many bytes the client has not taken.

use crate::config::ProxyConfig;
use crate::io::{Connection, Stream};
use crate::policy::Millis;

/// How much of an answer the client has taken, looked at once per `client_stall_timeout`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReaderWatch {
    /// Time of the last look.
    looked_at: Millis,
    /// Bytes sent since the last look.
    sent: u64,
    /// Bytes the client had not taken at the last look.
    waiting: u64,
}

impl ReaderWatch {
    pub(super) fn new(now: Millis) -> Self {
        Self { looked_at: now, sent: 0, waiting: 0 }
    }

    /// Says that `bytes` are about to be sent; false when the client takes less than it has to.
    pub(super) fn takes_enough<S: Stream>(
        &mut self,
        client: &Connection<S>,
        bytes: usize,
        now: Millis,
        config: &ProxyConfig,
    ) -> bool {
        let period = config.client_stall_timeout.as_millis() as Millis;
        let is_due = now.saturating_sub(self.looked_at) >= period;
        // What cannot be looked at is not held against the client.
        let takes_enough =
            !is_due || client.untaken().is_none_or(|untaken| self.look(untaken, now, config.min_download_bytes_per_s));
        self.sent += bytes as u64;
        takes_enough
    }

    fn look(&mut self, untaken: u64, now: Millis, min_bytes_per_s: u64) -> bool {
        let taken = (self.waiting + self.sent).saturating_sub(untaken);
        let elapsed_ms = now.saturating_sub(self.looked_at);
        // A client that was given less than that had nothing more to take.
        let has_to = self.waiting.min(min_bytes_per_s.saturating_mul(elapsed_ms) / 1000);
        *self = Self { looked_at: now, sent: 0, waiting: untaken };
        taken >= has_to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_to_take_what_waited_at_the_minimum_rate() {
        let watch = |waiting, sent| ReaderWatch { looked_at: 1_000, sent, waiting };
        for (waiting, sent, untaken, is_enough) in [
            // Nothing waited: whatever it has not taken by now is new.
            (0, 50_000, 50_000, true),
            // All that waited was taken, however little.
            (10, 0, 0, true),
            (10, 500, 500, true),
            // Ten seconds at 100 bytes/s.
            (50_000, 0, 49_000, true),
            (50_000, 0, 49_001, false),
            (50_000, 7_000, 56_000, true),
            (50_000, 7_000, 57_000, false),
            (10, 0, 10, false),
        ] {
            assert_eq!(watch(waiting, sent).look(untaken, 11_000, 100), is_enough, "{waiting} + {sent} -> {untaken}");
        }
        // A rate of 0 asks for nothing.
        assert!(watch(50_000, 0).look(50_000, 11_000, 0));
    }
}
