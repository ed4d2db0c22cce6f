//! The health of one engine as one worker sees it: connect failures take it out of the pick for a
//! bounded time.
//!
//! When the time is over, one request goes to the engine as a probe. Its success brings the engine
//! back, its failure doubles the time. The status of an answer does not count: any answer proves
//! that the engine can be reached.

use super::Millis;

/// Consecutive connect failures that take an engine out. One refused connection may be an accident,
/// three are not.
const FAILURES_OUT: u32 = 3;
/// First time out, in ms: short, since a restart may soon be over. Each failed probe doubles it.
const OUT_MIN_MS: Millis = 1_000;
/// Longest time out, in ms. An engine that is back waits no longer, and a dead one costs one probe
/// in this time.
const OUT_MAX_MS: Millis = 30_000;
/// Time after which a probe without an outcome is given up, in ms: longer than any connect takes.
const PROBE_MAX_MS: Millis = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    Healthy,
    /// Picked only when no other candidate is left.
    Out,
    /// One request is on its way as a probe.
    Probing,
}

#[derive(Clone, Copy, Debug)]
pub struct Health {
    failures: u32,
    out_ms: Millis,
    /// When the engine may be probed; while probing, when the probe is given up.
    until: Millis,
    state: HealthState,
}

impl Default for Health {
    fn default() -> Self {
        Self { failures: 0, out_ms: 0, until: 0, state: HealthState::Healthy }
    }
}

impl Health {
    pub fn state(&self) -> HealthState {
        self.state
    }

    /// Whether a request may be sent now, if only as a probe.
    pub fn admits(&self, now: Millis) -> bool {
        self.state == HealthState::Healthy || now >= self.until
    }

    /// Notes that a request was sent.
    pub fn picked(&mut self, now: Millis) {
        if self.state != HealthState::Healthy && now >= self.until {
            self.state = HealthState::Probing;
            self.until = now + PROBE_MAX_MS;
        }
    }

    /// Notes that a connection was made, or that bytes came back.
    pub fn reached(&mut self) {
        *self = Self::default();
    }

    /// Notes that a connection could not be made. `hard` says that the engine did not even refuse
    /// it, which costs a client the whole connect timeout.
    pub fn failed(&mut self, now: Millis, hard: bool) {
        self.failures = self.failures.saturating_add(if hard { FAILURES_OUT } else { 1 });
        match self.state {
            HealthState::Healthy if self.failures < FAILURES_OUT => return,
            HealthState::Healthy => self.out_ms = OUT_MIN_MS,
            HealthState::Probing => self.out_ms = (2 * self.out_ms).clamp(OUT_MIN_MS, OUT_MAX_MS),
            // A request sent before the engine was taken out tells nothing new.
            HealthState::Out => return,
        }
        self.state = HealthState::Out;
        self.until = now + self.out_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out_at(now: Millis) -> Health {
        let mut health = Health::default();
        (0..FAILURES_OUT).for_each(|_| health.failed(now, false));
        health
    }

    #[test]
    fn out_after_consecutive_failures_only() {
        let mut health = Health::default();
        for _ in 0..10 {
            health.failed(0, false);
            health.failed(0, false);
            health.reached();
        }
        assert_eq!(health.state(), HealthState::Healthy);
        assert_eq!(out_at(0).state(), HealthState::Out);
        let mut hard = Health::default();
        hard.failed(0, true);
        assert_eq!(hard.state(), HealthState::Out);
    }

    #[test]
    fn one_probe_at_a_time_and_its_outcome_decides() {
        let mut health = out_at(100);
        assert!(!health.admits(100 + OUT_MIN_MS - 1));
        assert!(health.admits(100 + OUT_MIN_MS));
        health.picked(100 + OUT_MIN_MS);
        assert_eq!(health.state(), HealthState::Probing);
        assert!(!health.admits(100 + OUT_MIN_MS + 1), "a second request must wait for the probe");
        health.failed(2000, false);
        assert!(!health.admits(2000 + 2 * OUT_MIN_MS - 1) && health.admits(2000 + 2 * OUT_MIN_MS));
        health.picked(2000 + 2 * OUT_MIN_MS);
        health.reached();
        assert!(health.admits(2000 + 2 * OUT_MIN_MS) && health.state() == HealthState::Healthy);
    }

    #[test]
    fn time_out_is_bounded_and_a_lost_probe_does_not_lock_the_engine_out() {
        let mut health = out_at(0);
        let mut now = 0;
        for _ in 0..20 {
            now += OUT_MAX_MS;
            assert!(health.admits(now));
            health.picked(now);
            health.failed(now, false);
        }
        now += OUT_MAX_MS;
        health.picked(now);
        assert!(health.admits(now + PROBE_MAX_MS));
    }
}
