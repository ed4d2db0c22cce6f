//! Health probes: one probe per engine, and the verdict that follows from its answers.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::model::{EngineId, Fleet};
use crate::plan::Inputs;
use crate::shortage;
use crate::telemetry::limited;

/// Number of refusals since the last healthy answer that take an engine out of the plan; one alone
/// may be a short restart.
const REFUSALS: u32 = 2;
/// Number of time-outs since the last healthy answer that take an engine out of the plan. A machine
/// that is short of CPU answers late, and taking its engine away would make the others late too.
const SILENCES: u32 = 5;
/// Number of time-outs since the last healthy answer after which an engine counts as late, and most
/// of its capacity is its limit.
const LATE_SILENCES: u32 = 2;
/// Time-out of a probe: far above the answer time of a healthy engine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest fraction of the fleet's capacity that time-outs may take out of the plan; beyond it the
/// probes are the likelier fault.
pub(crate) const MOST_SILENT_FRAC: f64 = 0.5;

/// The answer to one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A status below 500: an engine without a `/health` path still answers.
    Healthy,
    /// Connection refused or broken, or a status of 500 and above: certain evidence.
    Refused,
    /// No answer within the time-out.
    TimedOut,
}

/// The state of an engine that the plan uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ready,
    Down,
    Unresponsive,
}

/// Health of one engine according to its probes. Pure: it takes answers and gives a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    refusals: u32,
    silences: u32,
}

impl Health {
    /// Takes a probe's answer. Returns the new verdict if it changed.
    pub(crate) fn observe(&mut self, answer: Answer) -> Option<Verdict> {
        let before = self.verdict();
        match answer {
            Answer::Healthy => *self = Self::default(),
            Answer::Refused => self.refusals = self.refusals.saturating_add(1),
            Answer::TimedOut => self.silences = self.silences.saturating_add(1),
        }
        (self.verdict() != before).then_some(self.verdict())
    }

    /// True if several answers are missing, but fewer than [`SILENCES`].
    pub(crate) fn is_late(self) -> bool {
        self.verdict() == Verdict::Ready && self.silences >= LATE_SILENCES
    }

    pub(crate) fn verdict(self) -> Verdict {
        match (self.refusals >= REFUSALS, self.silences >= SILENCES) {
            (true, _) => Verdict::Down,
            (false, true) => Verdict::Unresponsive,
            (false, false) => Verdict::Ready,
        }
    }
}

/// The outcome of one probe.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub engine: EngineId,
    pub answer: Answer,
}

/// Treats every engine of a class as ready if none of them is: then the probes are the likelier
/// fault, and otherwise an attempt costs nothing. Those that are `withdrawn` stay away. Returns the
/// engines that it treats as ready.
pub(crate) fn assume_ready(fleet: &Fleet, inputs: &mut Inputs, withdrawn: &[bool]) -> Vec<EngineId> {
    let mut assumed = Vec::new();
    for class in fleet.class_ids() {
        let is_eligible = |&engine: &EngineId| fleet.ineligible(class, engine).is_none() && !withdrawn[engine.index()];
        let eligible: Vec<EngineId> = fleet.engine_ids().filter(is_eligible).collect();
        if eligible.iter().all(|e| inputs.ready[e.index()] == 0 || assumed.contains(e)) {
            for engine in eligible {
                inputs.ready[engine.index()] = fleet.engines[engine.index()].replicas;
                if !assumed.contains(&engine) {
                    assumed.push(engine);
                }
            }
        }
    }
    assumed
}

/// Probes `GET /health` of one engine every `period`, until the receiver closes.
pub(crate) async fn watch(engine: EngineId, address: SocketAddr, period: Duration, probes: mpsc::Sender<Probe>) {
    let client = reqwest::Client::builder().timeout(PROBE_TIMEOUT).no_proxy().pool_max_idle_per_host(0).build();
    let client = client.expect("a client without TLS needs nothing that can be missing");
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = match client.get(format!("http://{address}/health")).send().await {
            Ok(response) if response.status().as_u16() < 500 => Answer::Healthy,
            Err(error) if error.is_timeout() => Answer::TimedOut,
            // The engine was not asked, so there is no answer to tell.
            Err(error) if shortage::is_ours(&error) => {
                limited!(warn, %address, ?error, "failed to probe an engine for want of local resources");
                continue;
            }
            Ok(_) | Err(_) => Answer::Refused,
        };
        if probes.send(Probe { engine, answer }).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(answers: &[Answer]) -> Vec<Option<Verdict>> {
        let mut health = Health::default();
        answers.iter().map(|&answer| health.observe(answer)).collect()
    }

    #[test]
    fn two_refusals_take_an_engine_out_and_one_answer_brings_it_back() {
        use Answer::{Healthy, Refused};
        let found = verdicts(&[Refused, Healthy, Refused, Refused, Refused, Healthy, Healthy]);
        assert_eq!(found, [None, None, None, Some(Verdict::Down), None, Some(Verdict::Ready), None]);
    }

    #[test]
    fn silence_has_to_last_longer_than_refusal() {
        use Answer::{Healthy, Refused, TimedOut};
        assert_eq!(verdicts(&[TimedOut, TimedOut, TimedOut, TimedOut, Healthy, TimedOut]), [None; 6]);
        assert_eq!(verdicts(&[TimedOut; 5])[4], Some(Verdict::Unresponsive));
        let found = verdicts(&[TimedOut, TimedOut, TimedOut, TimedOut, TimedOut, Refused, Refused]);
        assert_eq!(found[6], Some(Verdict::Down), "hard evidence wins");
    }

    #[test]
    fn a_class_whose_engines_are_all_gone_is_planned_as_if_they_were_not() {
        let fleet = crate::config::parse(include_str!("../../../../examples/three-regions.toml")).expect("legal").fleet;
        let ready = |ready: [u32; 3], withdrawn: [bool; 3]| {
            let mut inputs = Inputs { ready: ready.to_vec(), ..Inputs::from_fleet(&fleet) };
            let assumed = assume_ready(&fleet, &mut inputs, &withdrawn).len();
            (inputs.ready, assumed)
        };
        assert_eq!(ready([0, 0, 0], [false; 3]), (vec![1, 1, 1], 3));
        assert_eq!(ready([0, 1, 0], [false; 3]), (vec![0, 1, 0], 0));
        assert_eq!(ready([0, 0, 0], [true, false, false]), (vec![0, 1, 1], 2), "an operator's word is no probe");
        assert_eq!(ready([0, 0, 0], [true; 3]), (vec![0, 0, 0], 0));
    }
}
