//! The measurements of the control plane, and the inputs of a plan that follow from them. Pure:
//! `now` comes in as an argument, and nothing is sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::Config;
use crate::control::engines::anomaly::{Anomaly, anomaly_of};
use crate::control::engines::drift::Drift;
use crate::control::engines::health;
use crate::control::engines::health::{Health, MOST_SILENT_FRAC, Probe, Verdict};
use crate::control::engines::outliers::EngineOutcomes;
use crate::control::engines::stall::Progress;
use crate::control::estimate::bursts::BurstWaits;
use crate::control::estimate::demand::{DemandEstimate, Freshness, ReportError};
use crate::control::estimate::distances::Distances;
use crate::model::{ClusterId, EngineId};
use crate::plan::{Inputs, Pin, RouteWeights};
use crate::probe::{EngineSignals, Reading, Scrape};
use crate::protocol::DemandReport;
use crate::publish::snapshot::{EngineOrder, Snapshot};

/// Age of an engine's signals, in scrape periods, up to which they count; older ones are unknown.
const SCRAPES_BELIEVED: u32 = 3;
/// Time for which `ilb status` shows a refused report.
const REFUSED_SHOWN: Duration = Duration::from_secs(60);

/// The control plane's measurements; owned by one task.
#[derive(Debug)]
pub struct Measured {
    pub(crate) config: Arc<Config>,
    /// Engines by name: a report may name thousands.
    engines: HashMap<String, EngineId>,
    pub(crate) demand: DemandEstimate,
    distances: Distances,
    bursts: BurstWaits,
    pub(crate) health: Vec<Health>,
    pub(crate) readings: Vec<Reading>,
    pub(crate) progress: Vec<Progress>,
    drifts: Vec<Drift>,
    pub(crate) outcomes: Vec<EngineOutcomes>,
    /// Engines that operators have withdrawn: plans do without them.
    withdrawn: Vec<bool>,
    /// The last refused report of each cluster, and the reason.
    refused: Vec<Option<(Duration, String)>>,
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
    /// False while configured or published demand stands in for measurements.
    pub measured: bool,
    /// Where the demand comes from, and how old it is.
    #[serde(default)]
    pub freshness: Freshness,
    /// Class and requests/s.
    pub demand_rps: Vec<(String, f64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineHealth {
    pub engine: String,
    pub ready: bool,
    #[serde(default)]
    pub profile: String,
    /// Planned replicas, by the engine's own metrics; `None` if it gives none.
    #[serde(default)]
    pub ready_replicas: Option<u32>,
    /// Last signals of the engine, while they count.
    #[serde(default)]
    pub signals: Option<EngineSignals>,
    /// Time of the signals, in seconds since the control plane's start.
    #[serde(default)]
    pub signals_at_s: Option<f64>,
    /// Error of the last scrape.
    #[serde(default)]
    pub signals_error: Option<String>,
    /// Deviation from the profile, if there is one.
    #[serde(default)]
    pub drift: Option<EngineDrift>,
    /// Load and latency under the active weights and current inputs; `None` before the first plan.
    #[serde(default)]
    pub present: Option<EnginePresent>,
    /// An operator's last word on it.
    #[serde(default)]
    pub order: Option<EngineOrder>,
}

/// An engine under the active weights, with the current demand, profile and replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnginePresent {
    /// Capacity, and load under the weights, in reference requests/s.
    pub capacity_rps: f64,
    pub load_rps: f64,
    /// Expected mean time of a request in the engine at that load.
    pub latency_ms: f64,
}

/// Deviation of an engine from its profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineDrift {
    /// Time in the engine divided by the profile's at the same load.
    pub ratio: f64,
    pub since_s: f64,
}

impl Measured {
    /// The state without measurements: configured demand, every engine ready.
    pub fn new(config: Arc<Config>) -> Self {
        let fleet = &config.fleet;
        let engines = fleet.engines.len();
        Self {
            engines: fleet.engine_ids().map(|engine| (fleet.engines[engine.index()].name.clone(), engine)).collect(),
            demand: DemandEstimate::new(fleet, config.control.period),
            distances: Distances::new(fleet),
            bursts: BurstWaits::new(fleet),
            health: vec![Health::default(); engines],
            readings: vec![Reading::default(); engines],
            progress: vec![Progress::default(); engines],
            drifts: vec![Drift::default(); engines],
            outcomes: vec![EngineOutcomes::default(); engines],
            withdrawn: vec![false; engines],
            refused: vec![None; fleet.clusters.len()],
            config,
        }
    }

    /// Takes the demand from a published snapshot, of another controller or of an earlier process
    /// of this one. It stands in for clusters without reports. A cluster or class that the snapshot
    /// does not name keeps its configured demand.
    pub fn start_from(&mut self, now: Duration, snapshot: &Snapshot) {
        let fleet = &self.config.fleet;
        let mut published = vec![vec![None; fleet.classes.len()]; fleet.clusters.len()];
        for route in &snapshot.routes {
            let cluster = fleet.cluster(&snapshot.clusters[route.cluster.index()].name);
            let class = fleet.class(&snapshot.classes[route.class.index()].name);
            if let (Some(cluster), Some(class)) = (cluster, class)
                && route.demand_rps.is_finite()
                && route.demand_rps >= 0.0
            {
                published[cluster.index()][class.index()] = Some(route.demand_rps);
            }
        }
        for (cluster, demand_rps) in fleet.cluster_ids().zip(published) {
            if demand_rps.iter().any(Option::is_some) {
                self.demand.start_from(now, cluster, &demand_rps);
            }
        }
    }

    /// Takes a data plane's report of its traffic until `now`.
    ///
    /// Errors: it names something unknown, or its window or the number of data planes is out of
    /// bounds; nothing changes.
    pub fn report(&mut self, now: Duration, report: &DemandReport) -> Result<(), MeasureError> {
        let cluster = self.config.fleet.cluster(&report.cluster).ok_or_else(|| MeasureError::Cluster(report.cluster.clone()))?;
        let outcome = self.take(now, cluster, report);
        if let Err(error) = &outcome {
            self.refused[cluster.index()] = Some((now, error.to_string()));
        }
        outcome
    }

    fn take(&mut self, now: Duration, cluster: ClusterId, report: &DemandReport) -> Result<(), MeasureError> {
        let fleet = &self.config.fleet;
        let mut arrivals = vec![0_u64; fleet.classes.len()];
        for (name, count) in &report.arrivals {
            let class = fleet.class(name).ok_or_else(|| MeasureError::Class(name.clone()))?;
            arrivals[class.index()] = arrivals[class.index()].saturating_add(*count);
        }
        self.demand.report(now, cluster, &report.instance, report.window_ms, &arrivals)?;
        // A data plane may know engines that this configuration does not have.
        let known = report.engines.iter().filter_map(|of| self.engines.get(&of.engine).map(|&engine| (engine, of)));
        let mut measured_ms = Vec::new();
        for (engine, of) in known {
            measured_ms.extend(of.rtt_ms.map(|ms| (engine, ms)));
            if !self.outcomes[engine.index()].take(now, of) {
                let text = format!("impossible numbers for engine {}", of.engine);
                self.refused[cluster.index()] = Some((now, text));
            }
        }
        self.distances.take(now, cluster, &report.instance, &measured_ms);
        Ok(())
    }

    /// Takes a probe's outcome. Returns the engine's verdict if it changed, which changes the
    /// plan's inputs.
    pub fn probe(&mut self, Probe { engine, answer }: Probe) -> Option<Verdict> {
        self.health[engine.index()].observe(answer)
    }

    /// Takes a scrape of an engine's metrics. True if its ready replicas changed, which changes the
    /// plan's inputs.
    pub fn scrape(&mut self, now: Duration, Scrape { engine, outcome }: Scrape) -> bool {
        let before = self.ready_replicas(now, engine);
        let (fleet, index) = (&self.config.fleet, engine.index());
        let replicas = fleet.engines[index].replicas;
        let said = outcome.as_ref().ok().cloned();
        self.readings[index].take(now, replicas, outcome);
        if let Some(signals) = self.readings[index].signals(now, self.signals_max_age()) {
            self.progress[index].observe(now, signals);
        }
        let ready = self.ready_replicas(now, engine);
        // Only an engine whose ready replicas are known can be compared with its profile.
        if let (Some(said), Some(ready @ 1..)) = (said, ready) {
            let stretch = f64::from(replicas) / f64::from(ready);
            self.drifts[index].take(now, &said, fleet.profile_of(engine), stretch);
        }
        ready != before
    }

    /// Signals of `engine`, while they count.
    pub fn signals(&self, now: Duration, engine: EngineId) -> Option<&EngineSignals> {
        self.readings[engine.index()].signals(now, self.signals_max_age())
    }

    pub(crate) fn ready_replicas(&self, now: Duration, engine: EngineId) -> Option<u32> {
        let replicas = self.config.fleet.engines[engine.index()].replicas;
        self.readings[engine.index()].ready_replicas(now, self.signals_max_age(), replicas)
    }

    pub(crate) fn signals_max_age(&self) -> Duration {
        self.config.control.scrape_period.unwrap_or_default() * SCRAPES_BELIEVED
    }

    /// Tells which engines operators have withdrawn, by engine.
    pub(crate) fn set_withdrawn(&mut self, withdrawn: Vec<bool>) {
        self.withdrawn = withdrawn;
    }

    /// Forgets how requests ended at an engine: an operator says that it is well.
    pub(crate) fn forget_outcomes(&mut self, engine: EngineId) {
        self.outcomes[engine.index()] = EngineOutcomes::default();
    }

    /// The inputs of a plan, and the anomalies of the measurements. `current` are the active
    /// weights.
    pub fn inputs(&mut self, now: Duration, pins: Vec<Pin>, current: Option<&[RouteWeights]>) -> (Inputs, Vec<Anomaly>) {
        let config = Arc::clone(&self.config);
        let fleet = &config.fleet;
        let mut anomalies = self.doubted_clusters(now);
        anomalies.extend(self.contradictions(now));
        let trusts_silence = self.trusts_silence(&mut anomalies);
        let ready = |engine: EngineId| match self.health[engine.index()].verdict() {
            _ if self.withdrawn[engine.index()] => 0,
            Verdict::Down => 0,
            Verdict::Unresponsive if trusts_silence => 0,
            Verdict::Unresponsive | Verdict::Ready => {
                self.ready_replicas(now, engine).unwrap_or(fleet.engines[engine.index()].replicas)
            }
        };
        let demand_rps = self.demand.demand_rps(now);
        let mut inputs = Inputs {
            ready: fleet.engine_ids().map(ready).collect(),
            slowdown: self.drifts.iter().map(Drift::slowdown).collect(),
            headroom_frac: config.control.headroom_frac,
            move_limit_frac: config.control.move_limit_frac,
            burst_ms: self.bursts.renew(now, fleet, &self.demand, &demand_rps).to_vec(),
            demand_rps,
            pins,
            ..Inputs::from_fleet(fleet)
        };
        if config.control.measured_rtt {
            inputs.rtt_ms = self.distances.rtt_ms().to_vec();
        }
        let far = inputs.drop_far_pins(fleet);
        if far > 0 {
            anomalies.push(Anomaly {
                subject: "pins".to_owned(),
                detail: format!("{far} name an engine that is now farther than the class may go; not active"),
            });
        }
        anomalies.extend(self.drifts.iter().zip(&fleet.engines).filter_map(|(drift, engine)| {
            let ratio = drift.alarm()?.ratio;
            let plan = if ratio > 1.0 { "planned so" } else { "planned by its profile all the same" };
            let profile = &fleet.profiles[engine.profile].name;
            let detail = format!(
                "takes {ratio:.1} times as long as its profile {profile} says; {plan}; refit it: ilb profile record, ilb profile fit"
            );
            Some(Anomaly { subject: format!("engine {}", engine.name), detail })
        }));
        anomalies.extend(health::assume_ready(fleet, &mut inputs, &self.withdrawn).into_iter().map(|engine| {
            anomaly_of(fleet, engine, "gone, as is every other engine of a class; planned as if it answered".to_owned())
        }));
        if let Some(current) = current {
            self.limit_engines(now, current, &mut inputs, &mut anomalies);
            self.keep_silent_clusters(now, current, &mut inputs);
        }
        (inputs, anomalies)
    }

    /// Anomalies of the reports of clusters.
    fn doubted_clusters(&self, now: Duration) -> Vec<Anomaly> {
        let fleet = &self.config.fleet;
        let mut anomalies = Vec::new();
        for cluster in fleet.cluster_ids() {
            let subject = format!("cluster {}", fleet.clusters[cluster.index()].name);
            let mut details = self.demand.anomalies(now, cluster);
            if self.config.control.measured_rtt {
                details.extend(self.distances.anomalies(now, fleet, cluster));
            }
            if let Some((at, error)) = &self.refused[cluster.index()]
                && now.saturating_sub(*at) < REFUSED_SHOWN
            {
                details.push(format!("a report was refused: {error}"));
            }
            anomalies.extend(details.into_iter().map(|detail| Anomaly { subject: subject.clone(), detail }));
        }
        anomalies
    }

    /// False if so much capacity is silent that the probes are the likelier fault, as on a machine
    /// that is out of CPU.
    fn trusts_silence(&self, anomalies: &mut Vec<Anomaly>) -> bool {
        let fleet = &self.config.fleet;
        let capacity = |engine: &EngineId| fleet.profile_of(*engine).capacity_rps;
        let silent = fleet.engine_ids().filter(|e| self.health[e.index()].verdict() == Verdict::Unresponsive);
        let silent_rps: f64 = silent.map(|e| capacity(&e)).sum();
        let all_rps: f64 = fleet.engine_ids().map(|e| capacity(&e)).sum();
        if silent_rps <= MOST_SILENT_FRAC * all_rps {
            return true;
        }
        anomalies.push(Anomaly {
            subject: "health probes".to_owned(),
            detail: "more than half of the capacity is silent; planned as if it answered".to_owned(),
        });
        false
    }

    /// Planned demand, for operators.
    pub fn clusters(&self, now: Duration) -> Vec<ClusterDemand> {
        let fleet = &self.config.fleet;
        let classes = || fleet.classes.iter().map(|class| class.name.clone());
        fleet
            .cluster_ids()
            .zip(self.demand.demand_rps(now))
            .map(|(cluster, demand_rps)| {
                let freshness = self.demand.freshness(now, cluster);
                ClusterDemand {
                    cluster: fleet.clusters[cluster.index()].name.clone(),
                    measured: !matches!(freshness, Freshness::Configured | Freshness::Published),
                    freshness,
                    demand_rps: classes().zip(demand_rps).collect(),
                }
            })
            .collect()
    }

    /// Engines as their probes and metrics show them, for operators.
    pub fn engines(&self, now: Duration) -> Vec<EngineHealth> {
        let of = |engine: EngineId| EngineHealth {
            engine: self.config.fleet.engines[engine.index()].name.clone(),
            ready: self.health[engine.index()].verdict() == Verdict::Ready,
            profile: self.config.fleet.profile_of(engine).name.clone(),
            ready_replicas: self.ready_replicas(now, engine),
            signals: self.signals(now, engine).cloned(),
            signals_at_s: self.readings[engine.index()].at().map(|at| at.as_secs_f64()),
            signals_error: self.readings[engine.index()].error().map(ToString::to_string),
            drift: self.drifts[engine.index()]
                .alarm()
                .map(|alarm| EngineDrift { ratio: alarm.ratio, since_s: now.saturating_sub(alarm.since).as_secs_f64() }),
            present: None,
            order: None,
        };
        self.config.fleet.engine_ids().map(of).collect()
    }
}

#[cfg(test)]
mod tests;
