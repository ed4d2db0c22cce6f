//! Everything the control plane has measured, and the inputs of a plan made of it. Pure: `now` comes in, nothing is sent.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::demand::{DemandEstimate, ReportError};
use super::health::{self, Health, MOST_SILENT_FRAC, Probe, Verdict};
use crate::config::Config;
use crate::model::EngineId;
use crate::plan::{Inputs, Pin};
use crate::probe::{EngineSignals, Reading, Scrape};
use crate::publish::store::DemandReport;

/// What an engine said is believed for so many periods of asking; then it is unknown.
const SCRAPES_BELIEVED: u32 = 3;

/// The control plane's measurements; owned by one task.
#[derive(Debug)]
pub struct Measured {
    config: Arc<Config>,
    demand: DemandEstimate,
    health: Vec<Health>,
    readings: Vec<Reading>,
}

/// Something that was measured and is not believed, or believed with a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion {
    /// What it is about, such as `engine e2` or `cluster b`.
    pub subject: String,
    /// What is wrong with it, and what the plan makes of it.
    pub finding: String,
}

/// Why a report is refused.
#[derive(Debug, Error)]
pub enum MeasureError {
    #[error("unknown cluster {0:?}")]
    Cluster(String),
    #[error("unknown class {0:?}")]
    Class(String),
    #[error(transparent)]
    Report(#[from] ReportError),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterDemand {
    pub cluster: String,
    /// False while the configured demand stands in for a measured one.
    pub measured: bool,
    /// Class and requests/s.
    pub demand_rps: Vec<(String, f64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineHealth {
    pub engine: String,
    pub ready: bool,
    /// Replicas that are planned with, by the engine's own account; `None` if it gives none.
    #[serde(default)]
    pub ready_replicas: Option<u32>,
    /// What the engine said of itself last, while that is believed.
    #[serde(default)]
    pub signals: Option<EngineSignals>,
    /// Why the last attempt to ask it failed.
    #[serde(default)]
    pub signals_error: Option<String>,
}

impl Measured {
    /// Nothing is measured yet: configured demand, every engine ready.
    pub fn new(config: Arc<Config>) -> Self {
        let fleet = &config.fleet;
        let engines = fleet.engines.len();
        let (health, readings) = (vec![Health::default(); engines], vec![Reading::default(); engines]);
        Self { demand: DemandEstimate::new(fleet), health, readings, config }
    }

    /// Takes a data plane's report of what arrived until `now`.
    ///
    /// Errors: it names something unknown, or its window or the number of data planes is out of bounds; nothing changes.
    pub fn report(&mut self, now: Duration, report: &DemandReport) -> Result<(), MeasureError> {
        let fleet = &self.config.fleet;
        let cluster = fleet.cluster(&report.cluster).ok_or_else(|| MeasureError::Cluster(report.cluster.clone()))?;
        let mut arrivals = vec![0_u64; fleet.classes.len()];
        for (name, count) in &report.arrivals {
            let class = fleet.class(name).ok_or_else(|| MeasureError::Class(name.clone()))?;
            arrivals[class.index()] = arrivals[class.index()].saturating_add(*count);
        }
        Ok(self.demand.report(now, cluster, &report.instance, report.window_ms, &arrivals)?)
    }

    /// Takes a probe's outcome. Returns the engine's verdict where it changed, and so changes the plan's inputs.
    pub fn probe(&mut self, Probe { engine, answer }: Probe) -> Option<Verdict> {
        self.health[engine.index()].observe(answer)
    }

    /// Takes what an engine said of itself. True if its ready replicas are others than before, and so the plan's inputs.
    pub fn scrape(&mut self, now: Duration, Scrape { engine, outcome }: Scrape) -> bool {
        let before = self.ready_replicas(now, engine);
        self.readings[engine.index()].take(now, self.config.fleet.engines[engine.index()].replicas, outcome);
        self.ready_replicas(now, engine) != before
    }

    /// What `engine` said of itself, while that is believed.
    pub fn signals(&self, now: Duration, engine: EngineId) -> Option<&EngineSignals> {
        self.readings[engine.index()].signals(now, self.signals_max_age())
    }

    fn ready_replicas(&self, now: Duration, engine: EngineId) -> Option<u32> {
        let replicas = self.config.fleet.engines[engine.index()].replicas;
        self.readings[engine.index()].ready_replicas(now, self.signals_max_age(), replicas)
    }

    fn signals_max_age(&self) -> Duration {
        self.config.control.scrape_period.unwrap_or_default() * SCRAPES_BELIEVED
    }

    /// What a plan is to be made from, and what of it is not to be believed without more.
    pub fn inputs(&self, now: Duration, pins: Vec<Pin>) -> (Inputs, Vec<Suspicion>) {
        let mut suspicions = Vec::new();
        let trusts_silence = self.trusts_silence(&mut suspicions);
        let fleet = &self.config.fleet;
        let ready = |engine: EngineId| match self.health[engine.index()].verdict() {
            Verdict::Gone => 0,
            Verdict::Silent if trusts_silence => 0,
            Verdict::Silent | Verdict::Ready => {
                self.ready_replicas(now, engine).unwrap_or(fleet.engines[engine.index()].replicas)
            }
        };
        let mut inputs = Inputs {
            demand_rps: self.demand.demand_rps(now),
            ready: fleet.engine_ids().map(ready).collect(),
            headroom_frac: self.config.control.headroom_frac,
            move_limit_frac: self.config.control.move_limit_frac,
            pins,
            ..Inputs::from_fleet(fleet)
        };
        let far = inputs.drop_far_pins(fleet);
        if far > 0 {
            suspicions.push(Suspicion {
                subject: "pins".to_owned(),
                finding: format!("{far} name an engine that is now farther than the class may go; not in force"),
            });
        }
        suspicions.extend(health::assume_ready(fleet, &mut inputs).into_iter().map(|engine| Suspicion {
            subject: format!("engine {}", fleet.engines[engine.index()].name),
            finding: "gone, as is every other engine of a class; planned as if it answered".to_owned(),
        }));
        (inputs, suspicions)
    }

    /// False when so much capacity is silent that the probes are the likelier fault, as on a machine that is out of CPU.
    fn trusts_silence(&self, suspicions: &mut Vec<Suspicion>) -> bool {
        let fleet = &self.config.fleet;
        let capacity = |engine: &EngineId| fleet.profile_of(*engine).capacity_rps;
        let silent = fleet.engine_ids().filter(|e| self.health[e.index()].verdict() == Verdict::Silent);
        let silent_rps: f64 = silent.map(|e| capacity(&e)).sum();
        let all_rps: f64 = fleet.engine_ids().map(|e| capacity(&e)).sum();
        if silent_rps <= MOST_SILENT_FRAC * all_rps {
            return true;
        }
        suspicions.push(Suspicion {
            subject: "health probes".to_owned(),
            finding: "more than half of the capacity is silent; planned as if it answered".to_owned(),
        });
        false
    }

    /// Demand as it is planned with, for operators.
    pub fn clusters(&self, now: Duration) -> Vec<ClusterDemand> {
        let fleet = &self.config.fleet;
        let classes = || fleet.classes.iter().map(|class| class.name.clone());
        fleet
            .cluster_ids()
            .zip(self.demand.demand_rps(now))
            .map(|(cluster, demand_rps)| ClusterDemand {
                cluster: fleet.clusters[cluster.index()].name.clone(),
                measured: self.demand.is_measured(now, cluster),
                demand_rps: classes().zip(demand_rps).collect(),
            })
            .collect()
    }

    /// Engines as probes and their own words show them, for operators.
    pub fn engines(&self, now: Duration) -> Vec<EngineHealth> {
        let of = |engine: EngineId| EngineHealth {
            engine: self.config.fleet.engines[engine.index()].name.clone(),
            ready: self.health[engine.index()].verdict() == Verdict::Ready,
            ready_replicas: self.ready_replicas(now, engine),
            signals: self.signals(now, engine).cloned(),
            signals_error: self.readings[engine.index()].error().map(ToString::to_string),
        };
        self.config.fleet.engine_ids().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::health::Answer;
    use super::*;

    fn measured() -> Measured {
        Measured::new(Arc::new(crate::config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal")))
    }

    fn probe(measured: &mut Measured, engine: usize, answer: Answer, times: usize) {
        for _ in 0..times {
            measured.probe(Probe { engine: EngineId::of(engine), answer });
        }
    }

    #[test]
    fn silence_of_more_than_half_of_the_capacity_is_not_believed_and_refusal_is() {
        let mut measured = measured();
        probe(&mut measured, 0, Answer::Silent, 5);
        let (inputs, suspicions) = measured.inputs(Duration::ZERO, Vec::new());
        assert_eq!((inputs.ready, suspicions.len()), (vec![0, 1, 1], 0));
        probe(&mut measured, 1, Answer::Silent, 5);
        let (inputs, suspicions) = measured.inputs(Duration::ZERO, Vec::new());
        assert_eq!((inputs.ready, suspicions[0].subject.as_str()), (vec![1, 1, 1], "health probes"));
        probe(&mut measured, 1, Answer::Refused, 2);
        assert_eq!(measured.inputs(Duration::ZERO, Vec::new()).0.ready, [0, 0, 1]);
        probe(&mut measured, 0, Answer::Refused, 2);
        probe(&mut measured, 2, Answer::Refused, 2);
        let (inputs, suspicions) = measured.inputs(Duration::ZERO, Vec::new());
        assert_eq!((inputs.ready, suspicions.len()), (vec![1, 1, 1], 3), "every engine gone is the probe's fault, and says so");
    }

    #[test]
    fn an_engine_that_counts_its_live_replicas_is_planned_with_those() {
        let source =
            include_str!("../../../examples/three-regions.toml").replacen("name = \"e2\"", "name = \"e2\"\nreplicas = 4", 1);
        let mut measured = Measured::new(Arc::new(crate::config::parse(&source).expect("legal")));
        let mut say = |at_s: u64, live: usize| {
            let page: String = (0..4).map(|n| format!("smg_worker_health{{worker=\"{n}\"}} {}\n", u8::from(n < live))).collect();
            let outcome = Ok(crate::probe::from_metrics(page.as_bytes()).expect("known"));
            let at = Duration::from_secs(at_s);
            let changed = measured.scrape(at, Scrape { engine: EngineId::of(1), outcome });
            (changed, measured.inputs(at, Vec::new()).0.ready)
        };
        assert_eq!(say(0, 3), (true, vec![1, 3, 1]));
        assert_eq!(say(5, 3), (false, vec![1, 3, 1]));
        assert_eq!(say(10, 4), (true, vec![1, 4, 1]));
        assert_eq!(say(15, 1), (true, vec![1, 1, 1]));
        let later = measured.inputs(Duration::from_secs(31), Vec::new()).0.ready;
        assert_eq!(later, [1, 4, 1], "what is old is not believed");
    }

    #[test]
    fn a_report_that_names_what_is_unknown_changes_nothing() {
        let mut measured = measured();
        let report = |cluster: &str, class: &str| DemandReport {
            cluster: cluster.to_owned(),
            instance: "p".to_owned(),
            window_ms: 1_000,
            arrivals: vec![("chat".to_owned(), 5), (class.to_owned(), 5)],
            ..DemandReport::default()
        };
        assert!(matches!(measured.report(Duration::ZERO, &report("x", "chat")), Err(MeasureError::Cluster(name)) if name == "x"));
        assert!(matches!(measured.report(Duration::ZERO, &report("b", "y")), Err(MeasureError::Class(name)) if name == "y"));
        assert!(!measured.clusters(Duration::ZERO)[1].measured);
    }
}
