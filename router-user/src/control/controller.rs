//! The task that owns the control plane's state.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use super::demand::{DemandEstimate, ReportError};
use super::health::{self, Health, MOST_SILENT_FRAC, Probe, Verdict};
use super::pins::{PinError, PinRequest, Pins};
use crate::clock::{Clock, unix_ms};
use crate::config::Config;
use crate::model::EngineId;
use crate::plan::planner::{Decision, decide};
use crate::plan::{Inputs, Plan, PlanError, RouteWeights, evaluate, plan};
use crate::publish::build;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{DemandReport, DirStore, StoreError};

/// Commands waiting for the task; senders wait beyond it.
const QUEUE: usize = 256;

/// What others ask of the controller. Each answer comes through the sender inside.
#[derive(Debug)]
pub enum Command {
    Report(DemandReport, oneshot::Sender<Result<(), CommandError>>),
    Pin(PinRequest, oneshot::Sender<Result<(), CommandError>>),
    /// Takes back the pins of a cluster and class; `None` means every one. Answers how many there were.
    Unpin {
        cluster: Option<String>,
        class: Option<String>,
        done: oneshot::Sender<Result<usize, CommandError>>,
    },
}

/// Why a command was refused.
#[derive(Debug, Error)]
pub enum CommandError {
    #[error("unknown cluster {0:?}")]
    Cluster(String),
    #[error("unknown class {0:?}")]
    Class(String),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error("the control plane is shutting down")]
    Gone,
}

/// What the controller is doing, for operators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlStatus {
    /// Plans made since the start, and those that were published.
    pub plans: u64,
    pub published: u64,
    /// Plans that failed; the previous weights stayed each time.
    pub failures: u64,
    /// Why the last plan was published, kept back, or failed.
    pub last_decision: String,
    pub last_plan_ms: f64,
    /// Expected mean latency under the present weights and inputs, in ms.
    pub expected_ms: f64,
    pub clusters: Vec<ClusterDemand>,
    pub engines: Vec<EngineHealth>,
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
}

/// Access to a running controller.
#[derive(Clone, Debug)]
pub struct ControllerHandle {
    pub commands: mpsc::Sender<Command>,
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub status: watch::Receiver<ControlStatus>,
}

/// The control plane's state, owned by one task.
pub struct Controller {
    config: Arc<Config>,
    clock: Clock,
    store: DirStore,
    demand: DemandEstimate,
    health: Vec<Health>,
    pins: Pins,
    status: ControlStatus,
    published: watch::Sender<Option<Arc<Snapshot>>>,
    status_sender: watch::Sender<ControlStatus>,
}

impl Controller {
    /// Starts the controller on the current tokio runtime. It goes on from the newest stored snapshot.
    ///
    /// Errors: the store cannot be opened or listed.
    pub fn start(config: Arc<Config>, clock: Clock) -> Result<ControllerHandle, StoreError> {
        let store = DirStore::open(&config.store.dir)?;
        let held = store.latest()?.map(Arc::new);
        if let Some(held) = &held {
            tracing::info!(generation = held.generation, "going on from the stored snapshot");
        }
        let (commands, inbox) = mpsc::channel(QUEUE);
        let (probe_sender, probes) = mpsc::channel(QUEUE);
        let (published, snapshots) = watch::channel(held);
        let (status_sender, status) = watch::channel(ControlStatus::default());
        for engine in config.fleet.engine_ids() {
            let address = config.fleet.engines[engine.index()].address;
            tokio::spawn(health::watch(engine, address, config.control.health_period, probe_sender.clone()));
        }
        let controller = Self {
            clock,
            demand: DemandEstimate::new(&config.fleet),
            health: vec![Health::default(); config.fleet.engines.len()],
            pins: Pins::load(&config.store.dir, &config.fleet),
            status: ControlStatus::default(),
            store,
            published,
            status_sender,
            config,
        };
        tokio::spawn(controller.run(inbox, probes));
        Ok(ControllerHandle { commands, snapshots, status })
    }

    async fn run(mut self, mut inbox: mpsc::Receiver<Command>, mut probes: mpsc::Receiver<Probe>) {
        let mut ticks = tokio::time::interval(self.config.control.period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let replan = tokio::select! {
                _ = ticks.tick() => true,
                Some(probe) = probes.recv() => self.observe(probe),
                command = inbox.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return,
                },
            };
            if replan {
                self.replan().await;
            }
        }
    }

    /// Takes a probe's outcome; true when it changes the plan's inputs.
    fn observe(&mut self, Probe { engine, answer }: Probe) -> bool {
        let Some(verdict) = self.health[engine.index()].observe(answer) else { return false };
        let name = &self.config.fleet.engines[engine.index()].name;
        match verdict {
            Verdict::Ready => tracing::info!(engine = name, "engine answers again"),
            Verdict::Gone => tracing::warn!(engine = name, "engine refuses its health probe; planning without it"),
            Verdict::Silent => tracing::warn!(engine = name, "engine is silent to its health probe"),
        }
        true
    }

    /// Carries out a command; true when it changes the plan's inputs at once.
    fn obey(&mut self, command: Command) -> bool {
        // Who asked may have stopped waiting; what was asked is done all the same.
        match command {
            Command::Report(report, done) => {
                let _ = done.send(self.take_report(&report));
                false
            }
            Command::Pin(pin, done) => {
                let outcome = self.pins.set(pin, &self.config.fleet).map_err(CommandError::from);
                let changed = outcome.is_ok();
                let _ = done.send(outcome);
                changed
            }
            Command::Unpin { cluster, class, done } => {
                let outcome = self.pins.unset(cluster.as_deref(), class.as_deref()).map_err(CommandError::from);
                let changed = outcome.as_ref().is_ok_and(|&removed| removed > 0);
                let _ = done.send(outcome);
                changed
            }
        }
    }

    fn take_report(&mut self, report: &DemandReport) -> Result<(), CommandError> {
        let fleet = &self.config.fleet;
        let cluster = fleet.cluster(&report.cluster).ok_or_else(|| CommandError::Cluster(report.cluster.clone()))?;
        let mut arrivals = vec![0; fleet.classes.len()];
        for (name, count) in &report.arrivals {
            let class = fleet.class(name).ok_or_else(|| CommandError::Class(name.clone()))?;
            arrivals[class.index()] += count;
        }
        Ok(self.demand.report(self.clock.now(), cluster, &report.instance, report.window_ms, &arrivals)?)
    }

    fn inputs(&mut self) -> Inputs {
        let trusts_silence = self.trusts_silence();
        let fleet = &self.config.fleet;
        let ready = |engine: EngineId| match self.health[engine.index()].verdict() {
            Verdict::Gone => 0,
            Verdict::Silent if trusts_silence => 0,
            Verdict::Silent | Verdict::Ready => fleet.engines[engine.index()].replicas,
        };
        let mut inputs = Inputs {
            demand_rps: self.demand.demand_rps(self.clock.now()),
            ready: fleet.engine_ids().map(ready).collect(),
            headroom_frac: self.config.control.headroom_frac,
            move_limit_frac: self.config.control.move_limit_frac,
            pins: self.pins.in_force(unix_ms(), fleet),
            ..Inputs::from_fleet(fleet)
        };
        let assumed = build::assume_ready(fleet, &mut inputs);
        if !assumed.is_empty() {
            tracing::warn!(engines = assumed.len(), "no engine of a class answers its health probe; planning as if all did");
        }
        inputs
    }

    /// False when so much capacity is silent that the probes are the likelier fault, as on a machine that is out of CPU.
    fn trusts_silence(&self) -> bool {
        let fleet = &self.config.fleet;
        let capacity = |engine: &EngineId| fleet.profile_of(*engine).capacity_rps;
        let silent = fleet.engine_ids().filter(|e| self.health[e.index()].verdict() == Verdict::Silent);
        let silent_rps: f64 = silent.map(|e| capacity(&e)).sum();
        let all_rps: f64 = fleet.engine_ids().map(|e| capacity(&e)).sum();
        if silent_rps > MOST_SILENT_FRAC * all_rps {
            tracing::warn!(silent_rps, all_rps, "more than half of the capacity is silent; planning as if it answered");
            return false;
        }
        true
    }

    async fn replan(&mut self) {
        let inputs = self.inputs();
        let held = self.published.borrow().clone();
        let held_weights = held.as_deref().and_then(|snapshot| build::held_weights(&self.config.fleet, snapshot));
        let (config, solving, holding) = (Arc::clone(&self.config), inputs.clone(), held_weights.clone());
        let started = self.clock.now();
        let outcome = tokio::task::spawn_blocking(move || plan(&config.fleet, &solving, holding.as_deref())).await;
        self.status.plans += 1;
        self.status.last_plan_ms = (self.clock.now() - started).as_secs_f64() * 1e3;
        let outcome = match outcome {
            Ok(outcome) => self.conclude(&inputs, held.as_deref(), held_weights, outcome),
            Err(panic) => Err(format!("planning panicked: {panic}")),
        };
        self.status.last_decision = outcome.unwrap_or_else(|failure| {
            self.status.failures += 1;
            tracing::error!(%failure, "keeping the previous weights");
            failure
        });
        self.describe();
        self.status_sender.send_replace(self.status.clone());
    }

    /// Publishes the plan or keeps what is held. Returns the reason, or what failed.
    fn conclude(
        &mut self,
        inputs: &Inputs,
        held: Option<&Snapshot>,
        held_weights: Option<Vec<RouteWeights>>,
        outcome: Result<Plan, PlanError>,
    ) -> Result<String, String> {
        let plan = outcome.map_err(|error| format!("no plan: {error}"))?;
        let fleet = &self.config.fleet;
        let decision = decide(fleet, inputs, held_weights.as_deref(), &plan);
        let reason = decision.to_string();
        let in_force = held_weights.filter(|_| matches!(decision, Decision::Keep { .. })).unwrap_or_else(|| plan.weights());
        self.status.expected_ms = evaluate(fleet, inputs, &in_force).mean_ms;
        if let Decision::Publish(_) = decision {
            let generation = held.map_or(0, |h| h.generation) + 1;
            let snapshot = build::snapshot(fleet, &plan, generation, unix_ms());
            snapshot.validate().map_err(|error| format!("plan makes no legal snapshot: {error}"))?;
            self.store.publish(&snapshot).map_err(|error| format!("cannot publish: {error}"))?;
            tracing::info!(generation, objective_ms = snapshot.objective_ms, reason, "published");
            self.published.send_replace(Some(Arc::new(snapshot)));
            self.status.published += 1;
        }
        Ok(reason)
    }

    fn describe(&mut self) {
        let (fleet, now) = (&self.config.fleet, self.clock.now());
        let demand = self.demand.demand_rps(now);
        self.status.clusters = (fleet.cluster_ids())
            .map(|cluster| ClusterDemand {
                cluster: fleet.clusters[cluster.index()].name.clone(),
                measured: self.demand.is_measured(now, cluster),
                demand_rps: fleet.classes.iter().map(|c| c.name.clone()).zip(demand[cluster.index()].iter().copied()).collect(),
            })
            .collect();
        self.status.engines = (fleet.engines.iter().zip(&self.health))
            .map(|(engine, health)| EngineHealth { engine: engine.name.clone(), ready: health.verdict() == Verdict::Ready })
            .collect();
    }
}

impl ControllerHandle {
    /// Sends a command made from the sender for its answer, and waits for that answer.
    ///
    /// Errors: the command's own, or the controller is gone.
    pub async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, CommandError>>) -> Command,
    ) -> Result<T, CommandError> {
        let (done, answer) = oneshot::channel();
        self.commands.send(command(done)).await.map_err(|_| CommandError::Gone)?;
        answer.await.map_err(|_| CommandError::Gone)?
    }

    /// Waits up to `patience` for a snapshot above `generation`.
    pub async fn newer_than(&self, generation: u64, patience: Duration) -> Option<Arc<Snapshot>> {
        let mut snapshots = self.snapshots.clone();
        let newer = |s: &Option<Arc<Snapshot>>| s.as_ref().is_some_and(|s| s.generation > generation);
        match tokio::time::timeout(patience, snapshots.wait_for(newer)).await {
            Ok(Ok(snapshot)) => snapshot.clone(),
            _ => None,
        }
    }
}
