//! Which engines answer: a probe per engine, and what its answers mean for the plan.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::model::EngineId;

/// Failed probes in a row that take an engine out of the plan; one alone is as likely a hiccup.
const FAILURES: u32 = 2;
/// An engine that needs longer to say that it is healthy is not.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// One engine's health as the probes see it. Pure: takes outcomes, gives a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Health {
    failures: u32,
}

impl Health {
    /// Takes a probe's outcome. Returns the new verdict if it changed.
    pub(super) fn observe(&mut self, healthy: bool) -> Option<bool> {
        let before = self.is_ready();
        self.failures = if healthy { 0 } else { self.failures.saturating_add(1) };
        (self.is_ready() != before).then_some(self.is_ready())
    }

    pub(super) fn is_ready(self) -> bool {
        self.failures < FAILURES
    }
}

/// The outcome of one probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) engine: EngineId,
    pub(super) healthy: bool,
}

/// Probes `GET /health` of one engine every `period`, until the receiver is gone.
///
/// Any answer below 500 is healthy: an engine without such a path still answers. Refused, silent and 5xx are not.
pub(super) async fn watch(engine: EngineId, address: SocketAddr, period: Duration, probes: mpsc::Sender<Probe>) {
    let client = reqwest::Client::builder().timeout(PROBE_TIMEOUT).no_proxy().pool_max_idle_per_host(0).build();
    let client = client.expect("a client without TLS needs nothing that can be missing");
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = client.get(format!("http://{address}/health")).send().await;
        let healthy = answer.is_ok_and(|response| response.status().as_u16() < 500);
        if probes.send(Probe { engine, healthy }).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_failures_in_a_row_take_an_engine_out_and_one_success_brings_it_back() {
        let mut health = Health::default();
        let verdicts: Vec<Option<bool>> =
            [false, true, false, false, false, true, true].into_iter().map(|h| health.observe(h)).collect();
        assert_eq!(verdicts, [None, None, None, Some(false), None, Some(true), None]);
    }
}
