//! Which engines answer: a probe per engine, and what its answers mean for the plan.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::model::{EngineId, Fleet};
use crate::plan::Inputs;

/// Refusals in a row that take an engine out of the plan; one alone is as likely a restart of a moment.
const REFUSALS: u32 = 2;
/// Silences in a row that do. A machine that is short of CPU answers late, and to take its engine away then makes the others late too.
const SILENCES: u32 = 5;
/// Silences in a row after which it is not given more than most of its capacity.
const LATE_SILENCES: u32 = 2;
/// A probe without an answer for so long counts as silence.
const PATIENCE: Duration = Duration::from_secs(2);
/// Fraction of the fleet's capacity that silence may take out of the plan; beyond it, it is the probe that cannot be trusted.
pub(crate) const MOST_SILENT_FRAC: f64 = 0.5;

/// What one probe met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Any status below 500: an engine without such a path still answers.
    Healthy,
    /// Connection refused or broken, or a status of 500 and above: hard evidence.
    Refused,
    /// Nothing in time.
    Silent,
}

/// What the plan should think of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ready,
    Gone,
    Silent,
}

/// One engine's health as the probes see it. Pure: takes answers, gives a verdict.
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
            Answer::Silent => self.silences = self.silences.saturating_add(1),
        }
        (self.verdict() != before).then_some(self.verdict())
    }

    /// Whether several answers are missing, though not as many as make it silent.
    pub(crate) fn is_late(self) -> bool {
        self.verdict() == Verdict::Ready && self.silences >= LATE_SILENCES
    }

    pub(crate) fn verdict(self) -> Verdict {
        match (self.refusals >= REFUSALS, self.silences >= SILENCES) {
            (true, _) => Verdict::Gone,
            (false, true) => Verdict::Silent,
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

/// Counts every engine of a class as ready when none of that class's engines is: then the probe is the likelier fault, and if it is
/// not, trying costs nothing. Returns the engines that were assumed to be ready.
pub(crate) fn assume_ready(fleet: &Fleet, inputs: &mut Inputs) -> Vec<EngineId> {
    let mut assumed = Vec::new();
    for class in fleet.class_ids() {
        let eligible: Vec<EngineId> = fleet.engine_ids().filter(|&e| fleet.ineligible(class, e).is_none()).collect();
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

/// Probes `GET /health` of one engine every `period`, until the receiver is gone.
pub(crate) async fn watch(engine: EngineId, address: SocketAddr, period: Duration, probes: mpsc::Sender<Probe>) {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().pool_max_idle_per_host(0).build();
    let client = client.expect("a client without TLS needs nothing that can be missing");
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = match client.get(format!("http://{address}/health")).send().await {
            Ok(response) if response.status().as_u16() < 500 => Answer::Healthy,
            Err(error) if error.is_timeout() => Answer::Silent,
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
        assert_eq!(found, [None, None, None, Some(Verdict::Gone), None, Some(Verdict::Ready), None]);
    }

    #[test]
    fn silence_has_to_last_longer_than_refusal() {
        use Answer::{Healthy, Refused, Silent};
        assert_eq!(verdicts(&[Silent, Silent, Silent, Silent, Healthy, Silent]), [None; 6]);
        assert_eq!(verdicts(&[Silent; 5])[4], Some(Verdict::Silent));
        let found = verdicts(&[Silent, Silent, Silent, Silent, Silent, Refused, Refused]);
        assert_eq!(found[6], Some(Verdict::Gone), "hard evidence wins");
    }

    #[test]
    fn a_class_whose_engines_are_all_gone_is_planned_as_if_they_were_not() {
        let fleet = crate::config::parse(include_str!("../../../../examples/three-regions.toml")).expect("legal").fleet;
        let ready = |ready: [u32; 3]| {
            let mut inputs = Inputs { ready: ready.to_vec(), ..Inputs::from_fleet(&fleet) };
            let assumed = assume_ready(&fleet, &mut inputs).len();
            (inputs.ready, assumed)
        };
        assert_eq!(ready([0, 0, 0]), (vec![1, 1, 1], 3));
        assert_eq!(ready([0, 1, 0]), (vec![0, 1, 0], 0));
    }
}
