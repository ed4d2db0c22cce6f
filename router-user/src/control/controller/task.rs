//! The task that owns the control plane's state.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::{Clock, unix_ms};
use crate::config::Config;
use crate::control::canary::{Canary, Finding};
use crate::control::cycle::{Conclusion, completed, conclude, restated};
use crate::control::engines::health;
use crate::control::engines::health::{Probe, Verdict};
use crate::control::estimate::state::{ClusterDemand, EngineHealth, EnginePresent, MeasureError, Measured, Suspicion};
use crate::control::leadership::publisher::{Change, Publisher};
use crate::control::pins;
use crate::control::pins::{HeldPin, Moment, PinError, PinRequest, Pins};
use crate::control::planner_thread::Solver;
use crate::model::{ClassId, ClusterId, Fleet};
use crate::plan::decide::gate::{Decision, PublishReason};
use crate::plan::decide::regions::RegionLoss;
use crate::plan::explain::{report, shed};
use crate::plan::verify::check;
use crate::plan::{EngineEvaluation, Inputs, Plan, RouteWeights, evaluate};
use crate::probe::{self, Scrape};
use crate::publish::snapshot::{Route, Snapshot};
use crate::publish::store::{DemandReport, DirStore, EtcdStore, Held, LONG_POLL, Reports, Store, StoreError};
use crate::publish::{Generation, build};
use crate::rng::{self, Rng};

/// Commands waiting for the task; senders wait beyond it.
const QUEUE: usize = 256;
/// First and longest pause after etcd gave no reports.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);

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
    /// Publishes an old generation's content under a new number, and holds its weights as pins. Answers the new number.
    Rollback {
        generation: Generation,
        /// After how long the optimiser takes over again; when it is told to, if missing.
        ttl: Option<Duration>,
        done: oneshot::Sender<Result<u64, CommandError>>,
    },
    /// Gives up the lead, if this controller has it.
    Resign(oneshot::Sender<Result<(), CommandError>>),
}

/// Why a command was refused.
#[derive(Debug, Error)]
pub enum CommandError {
    #[error(transparent)]
    Report(#[from] MeasureError),
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("this controller stands by: {0}; ask that one")]
    StandsBy(String),
    #[error("generation {0} is of another fleet: clusters, classes, engines or their addresses have changed since")]
    OtherFleet(Generation),
    #[error("the control plane is shutting down")]
    Gone,
}

/// What the controller is doing, for operators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlStatus {
    /// Why another controller publishes and not this one; `None` while this one does.
    #[serde(default)]
    pub stands_by: Option<String>,
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
    /// What the loss of each region would have meant when the weights in force were published.
    #[serde(default)]
    pub regions: Vec<RegionLoss>,
    pub clusters: Vec<ClusterDemand>,
    pub engines: Vec<EngineHealth>,
    /// The trial that a new plan is on in the canary's cluster.
    #[serde(default)]
    pub trial: Option<String>,
    /// Measurements that are not believed as they came.
    #[serde(default)]
    pub suspicions: Vec<Suspicion>,
}

/// The plan in force, and what it was made for.
#[derive(Clone, Debug)]
pub struct Explained {
    pub generation: Generation,
    pub inputs: Inputs,
    pub plan: Plan,
}

/// Access to a running controller.
#[derive(Clone, Debug)]
pub struct ControllerHandle {
    pub commands: mpsc::Sender<Command>,
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub status: watch::Receiver<ControlStatus>,
    /// `None` until the first plan of this controller.
    pub explained: watch::Receiver<Option<Arc<Explained>>>,
    pub config: Arc<Config>,
    seen: watch::Sender<Generation>,
    /// What this controller keeps on its own disk.
    pub dir: DirStore,
}

/// The control plane's state, owned by one task.
pub struct Controller {
    config: Arc<Config>,
    clock: Clock,
    publisher: Publisher,
    seen: watch::Sender<Generation>,
    measured: Measured,
    pins: Pins,
    /// Every engine under the weights in force, as of the last plan.
    present: Vec<EnginePresent>,
    /// Routes whose weights an operator has set, as of the last inputs.
    by_hand: Vec<(ClusterId, ClassId)>,
    canary: Option<Canary>,
    solver: Solver,
    status: ControlStatus,
    status_sender: watch::Sender<ControlStatus>,
    explained: watch::Sender<Option<Arc<Explained>>>,
}

impl Controller {
    /// Starts the controller on the current tokio runtime. It goes on from the newest stored snapshot. With an etcd it stands for
    /// election, and publishes only while it leads.
    ///
    /// Errors: the directory cannot be opened or listed.
    pub fn start(config: Arc<Config>, clock: Clock, etcd: Option<EtcdStore>) -> Result<ControllerHandle, StoreError> {
        let seen = watch::Sender::new(Generation(0));
        let publisher = Publisher::open(&config, etcd, &seen)?;
        let snapshots = publisher.snapshots();
        let (commands, inbox) = mpsc::channel(QUEUE);
        let (probe_sender, probes) = mpsc::channel(QUEUE);
        let (scrape_sender, scrapes) = mpsc::channel(QUEUE);
        let client = probe::client();
        let seed = rng::entropy();
        let (status_sender, status) = watch::channel(ControlStatus::default());
        let (explained_sender, explained) = watch::channel(None);
        for engine in config.fleet.engine_ids() {
            let address = config.fleet.engines[engine.index()].address;
            tokio::spawn(health::watch(engine, address, config.control.health_period, probe_sender.clone()));
            if let Some(period) = config.control.scrape_period {
                let rng = Rng::stream(seed, u64::from(engine.0));
                tokio::spawn(probe::watch(client.clone(), engine, address, period, scrape_sender.clone(), rng));
            }
        }
        let mut measured = Measured::new(Arc::clone(&config));
        if let Some(held) = publisher.held() {
            measured.start_from(clock.now(), &held);
        }
        let controller = Self {
            clock,
            measured,
            canary: Canary::new(&config),
            pins: Pins::load(&config.store.dir, &config.fleet, Moment { now: clock.now(), unix_ms: unix_ms() }),
            by_hand: Vec::new(),
            present: Vec::new(),
            solver: Solver::start(Arc::clone(&config)).expect("the machine has room for one thread"),
            status: ControlStatus::default(),
            seen: seen.clone(),
            publisher,
            status_sender,
            explained: explained_sender,
            config: Arc::clone(&config),
        };
        if let Some(reports) = controller.publisher.reports() {
            tokio::spawn(take_reports(reports, commands.clone()));
        }
        let dir = controller.publisher.dir().clone();
        tokio::spawn(controller.run(inbox, probes, scrapes));
        Ok(ControllerHandle { commands, snapshots, status, explained, config, seen, dir })
    }

    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Command>,
        mut probes: mpsc::Receiver<Probe>,
        mut scrapes: mpsc::Receiver<Scrape>,
    ) {
        let mut ticks = tokio::time::interval(self.config.control.period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let replan = tokio::select! {
                _ = ticks.tick() => true,
                Some(probe) = probes.recv() => self.observe(probe),
                Some(scrape) = scrapes.recv() => self.measured.scrape(self.clock.now(), scrape),
                command = inbox.recv() => match command {
                    Some(command) => self.obey(command).await,
                    None => return,
                },
                change = self.publisher.change() => self.heed(change).await,
            };
            if replan {
                self.replan().await;
            }
        }
    }

    /// Takes a probe's outcome; true when it changes the plan's inputs.
    fn observe(&mut self, probe: Probe) -> bool {
        let Some(verdict) = self.measured.probe(probe) else { return false };
        let name = &self.config.fleet.engines[probe.engine.index()].name;
        match verdict {
            Verdict::Ready => tracing::info!(engine = name, "engine answers again"),
            Verdict::Gone => tracing::warn!(engine = name, "engine refuses its health probe; planning without it"),
            Verdict::Silent => tracing::warn!(engine = name, "engine is silent to its health probe"),
        }
        true
    }

    /// Takes a change of this controller's place among its equals; true when it wants a plan at once.
    async fn heed(&mut self, change: Change) -> bool {
        match change {
            Change::Adopt(snapshot) => {
                if self.publisher.adopt(&snapshot) {
                    self.measured.start_from(self.clock.now(), &snapshot);
                }
            }
            Change::Lead => return self.status.stands_by.is_some() != self.publisher.stands_by().is_some(),
            Change::Behind if self.publisher.is_behind() => {
                let Some(held) = self.publisher.held() else { return true };
                let seen = *self.seen.borrow();
                let reason = format!("a data plane holds generation {seen}, which this store does not have");
                tracing::warn!(%seen, "publishing again above a generation that this store does not have");
                let content = Snapshot { reason, ..Snapshot::clone(&held) };
                if let Err(error) = self.publisher.publish(content).await {
                    tracing::error!(%error, "cannot publish again");
                }
            }
            Change::Behind => {}
        }
        false
    }

    /// Carries out a command; true when it changes the plan's inputs at once.
    async fn obey(&mut self, command: Command) -> bool {
        // Who asked may have stopped waiting; what was asked is done all the same.
        match command {
            Command::Report(report, done) => {
                let _ = done.send(self.take_report(&report));
                false
            }
            Command::Pin(pin, done) => {
                let outcome = match self.pins.with(pin, &self.config.fleet, self.moment()) {
                    Ok(pins) => self.keep_pins(pins).await,
                    Err(error) => Err(error.into()),
                };
                let changed = outcome.is_ok();
                let _ = done.send(outcome);
                changed
            }
            Command::Unpin { cluster, class, done } => {
                let outcome = self.unpin(cluster.as_deref(), class.as_deref()).await;
                let changed = matches!(outcome, Ok(1..));
                let _ = done.send(outcome);
                changed
            }
            Command::Rollback { generation, ttl, done } => {
                let outcome = self.roll_back(generation, ttl).await;
                let changed = outcome.is_ok();
                let _ = done.send(outcome);
                changed
            }
            Command::Resign(done) => {
                self.publisher.resign().await;
                let _ = done.send(Ok(()));
                false
            }
        }
    }

    /// Puts `pins` in the place of all: first where the next leader finds them, then here.
    async fn keep_pins(&mut self, pins: Vec<HeldPin>) -> Result<(), CommandError> {
        if let Some(leader) = self.publisher.stands_by() {
            return Err(CommandError::StandsBy(leader));
        }
        let moment = self.moment();
        self.publisher.keep_pins(&pins::to_json(&pins, moment)).await?;
        Ok(self.pins.keep(pins, moment)?)
    }

    /// Takes back the pins that match; returns how many there were.
    async fn unpin(&mut self, cluster: Option<&str>, class: Option<&str>) -> Result<usize, CommandError> {
        let kept = self.pins.without(cluster, class, &self.config.fleet)?;
        let removed = self.pins.len() - kept.len();
        if removed > 0 {
            self.keep_pins(kept).await?;
        }
        Ok(removed)
    }

    fn moment(&self) -> Moment {
        Moment { now: self.clock.now(), unix_ms: unix_ms() }
    }

    /// Publishes the content of `generation` again. Its weights become pins, or else the next plan would undo it.
    async fn roll_back(&mut self, generation: Generation, ttl: Option<Duration>) -> Result<u64, CommandError> {
        if let Some(leader) = self.publisher.stands_by() {
            return Err(CommandError::StandsBy(leader));
        }
        let old = self.publisher.read(generation).await?;
        let fleet = &self.config.fleet;
        if build::changes(fleet, &old).is_some() {
            return Err(CommandError::OtherFleet(generation));
        }
        // A route without weights is refused as a whole: there is nothing to pin.
        let routes = old.routes.iter().filter(|route| !route.weights.is_empty());
        let pin = |route: &Route| PinRequest {
            cluster: fleet.clusters[route.cluster.index()].name.clone(),
            class: fleet.classes[route.class.index()].name.clone(),
            weights: route.weights.iter().map(|s| (fleet.engines[s.engine.index()].name.clone(), s.weight)).collect(),
            ttl_ms: ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
            expires_unix_ms: None,
        };
        let moment = self.moment();
        self.keep_pins(routes.map(|route| HeldPin::of(pin(route), moment)).collect()).await?;
        let is_pinned = |route: &Route| !route.weights.is_empty();
        let routes = old.routes.iter().map(|route| Route { pinned: is_pinned(route), ..route.clone() }).collect();
        let reason = format!("rolled back to generation {generation}");
        let content = Snapshot { reason, routes, audience: Vec::new(), ..old };
        let published = self.publisher.publish(content).await?;
        self.status.published += 1;
        tracing::info!(from = %generation, generation = %Generation(published.generation), "rolled back");
        Ok(published.generation)
    }

    fn take_report(&mut self, report: &DemandReport) -> Result<(), CommandError> {
        if let Some(canary) = &mut self.canary {
            canary.observe(self.clock.now(), report);
        }
        note(&self.seen, Generation(report.generation));
        Ok(self.measured.report(self.clock.now(), report)?)
    }

    /// The inputs of the next plan. What is suspicious in them is logged once, and shown for as long as it lasts.
    fn inputs(&mut self, held: Option<&[RouteWeights]>) -> Inputs {
        let pins = self.pins.in_force(self.clock.now(), &self.config.fleet);
        self.by_hand = pins.iter().map(|pin| (pin.cluster, pin.class)).collect();
        let (inputs, suspicions) = self.measured.inputs(self.clock.now(), pins, held);
        for Suspicion { subject, finding } in suspicions.iter().filter(|found| !self.status.suspicions.contains(found)) {
            tracing::warn!(subject, finding, "suspicious input");
        }
        self.status.suspicions = suspicions;
        inputs
    }

    async fn replan(&mut self) {
        if let Err(failure) = self.prepare().await {
            self.status.stands_by = Some(failure);
        } else {
            self.status.stands_by = self.publisher.stands_by();
        }
        self.publisher.show_life();
        if let Some(reason) = &self.status.stands_by {
            self.status.last_decision = format!("stands by: {reason}");
            self.tell_status();
            return;
        }
        let inputs = self.inputs(self.held_weights().as_deref());
        if let Err(failure) = self.settle(&inputs).await {
            tracing::error!(%failure, "a trial cannot be ended");
            self.status.failures += 1;
            self.status.last_decision = failure;
            self.tell_status();
            return;
        }
        let held_weights = self.held_weights().and_then(|held| completed(&self.config.fleet, &inputs, held));
        let started = self.clock.now();
        let outcome = self.solver.plan(inputs.clone(), held_weights.clone()).await;
        self.status.plans += 1;
        self.status.last_plan_ms = (self.clock.now() - started).as_secs_f64() * 1e3;
        let outcome = match outcome {
            Ok(plan) => self.conclude(&inputs, held_weights, &plan).await,
            Err(failure) => Err(failure),
        };
        self.status.last_decision = outcome.unwrap_or_else(|failure| {
            self.status.failures += 1;
            tracing::error!(%failure, "keeping the previous weights");
            failure
        });
        self.tell_status();
    }

    /// What a new leader does before its first plan.
    async fn prepare(&mut self) -> Result<(), String> {
        let before = self.publisher.held();
        let pins = self.publisher.prepare().await.map_err(|error| format!("cannot take over from the last leader: {error}"))?;
        if let Some(held) = self.publisher.held().filter(|held| before.as_ref() != Some(held)) {
            self.measured.start_from(self.clock.now(), &held);
        }
        if let Some(json) = pins
            && let Err(error) = self.pins.adopt(&json, &self.config.fleet, self.moment())
        {
            tracing::warn!(%error, "the last leader's pins are not in force");
        }
        Ok(())
    }

    /// The weights in force, everywhere together; `None` where there are none, or nobody knows what is in force where.
    fn held_weights(&self) -> Option<Vec<RouteWeights>> {
        let held = self.publisher.held()?;
        if held.audience.is_empty() {
            return build::held_weights(&self.config.fleet, &held);
        }
        Some(self.canary.as_ref()?.trial.as_ref()?.mix.clone())
    }

    /// Ends a trial whose time is over, and one that its controller did not live to end: all get the plan, or what was before it.
    async fn settle(&mut self, inputs: &Inputs) -> Result<(), String> {
        let now = self.clock.now();
        let held = self.publisher.held();
        let on_trial = held.filter(|held| !held.audience.is_empty());
        let own = on_trial.as_ref().filter(|held| self.canary.as_ref().is_some_and(|canary| canary.is_trying(held.generation)));
        let Some(on_trial) = on_trial.clone() else {
            // Something that could not wait was published to all.
            self.canary.as_mut().and_then(|canary| canary.end(now, None));
            return Ok(());
        };
        let cluster = on_trial.audience.join(", ");
        let (content, reason) = match self.canary.as_mut().filter(|_| own.is_some()) {
            Some(canary) => {
                let Some(finding) = canary.finding(now) else { return Ok(()) };
                let (is_good, why) = match finding {
                    Finding::Good(figures) => (true, figures),
                    Finding::Bad(figures) => (false, figures),
                };
                tracing::info!(cluster, is_good, why, "a trial is over");
                let failed = (!is_good).then(|| build::held_weights(&self.config.fleet, &on_trial)).flatten();
                let Some(trial) = canary.end(now, failed.map(|weights| (weights, why.clone()))) else { return Ok(()) };
                match is_good {
                    true => (Some(trial.content), format!("its trial in cluster {cluster} went well: {why}")),
                    false => (
                        Some(Snapshot::clone(&trial.before)),
                        format!("its successor failed its trial in cluster {cluster}: {why}"),
                    ),
                }
            }
            None => {
                self.canary.as_mut().and_then(|canary| canary.end(now, None));
                let before = self.publisher.last_for_all().await;
                (before, format!("the trial of its successor in cluster {cluster} ended with its controller"))
            }
        };
        let is_legal = |content: &Snapshot| {
            let is_of_this_fleet = build::changes(&self.config.fleet, content).is_none();
            let weights = build::held_weights(&self.config.fleet, content).filter(|_| is_of_this_fleet);
            weights.is_some_and(|weights| check::legal(&self.config.fleet, inputs, &weights).is_ok())
        };
        // If times have changed too much for it, the next plan goes to all.
        if let Some(content) = content.filter(is_legal) {
            let content = Snapshot { reason, audience: Vec::new(), ..content };
            self.publisher.publish(content).await.map_err(|error| format!("cannot publish: {error}"))?;
            self.status.published += 1;
        }
        Ok(())
    }

    /// Publishes the plan or keeps what is held. Returns the reason, or what failed.
    async fn conclude(
        &mut self,
        inputs: &Inputs,
        held_weights: Option<Vec<RouteWeights>>,
        plan: &Plan,
    ) -> Result<String, String> {
        let fleet = &self.config.fleet;
        let Conclusion { decision, mut published, expected_ms } = conclude(fleet, inputs, held_weights.as_deref(), plan);
        let mut reason = decision.to_string();
        // Data planes know the fleet from snapshots: a changed one is published to all, with the weights that are held if they stay.
        let change = self.publisher.held().and_then(|held| build::changes(fleet, &held));
        if let (Some(change), Some(held), None) = (&change, &held_weights, &published) {
            published =
                Some(restated(fleet, inputs, held, plan, &format!("the weights stay, and the fleet has changed: {change}")));
            reason = format!("{reason}; published all the same, as the fleet has changed: {change}");
        }
        if let Some((_, content)) = &mut published {
            // Weights that are only kept, as those of a silent cluster are, are nobody's choice.
            label(&mut content.routes, &self.by_hand);
        } else if let Some(content) = self.publisher.held().and_then(|held| relabelled(&held, &self.by_hand)) {
            self.publisher.publish(content).await.map_err(|error| format!("cannot publish: {error}"))?;
            self.status.published += 1;
        }
        self.status.expected_ms = expected_ms;
        let in_force = published.as_ref().map(|(published, _)| published.weights()).or_else(|| held_weights.clone());
        self.present = in_force.map_or_else(Vec::new, |weights| present(fleet, inputs, &weights));
        let explained = |generation: Generation, plan: Plan| Explained { generation, inputs: inputs.clone(), plan };
        if let Some((published, content)) = published {
            let now = self.clock.now();
            // What breaks a rule is replaced everywhere at once.
            let is_urgent =
                change.is_some() || matches!(decision, Decision::Publish(PublishReason::First | PublishReason::Illegal(_)));
            let canary = self.canary.as_ref().filter(|_| !is_urgent);
            if let Some(kept) = canary.and_then(|canary| canary.holds_back(now, inputs, &published.weights())) {
                return Ok(kept);
            }
            let trial = canary.zip(held_weights.as_deref().zip(self.publisher.held())).and_then(|(canary, (held, before))| {
                Some((canary.name.clone(), canary.mix(fleet, inputs, held, &published.weights())?, before))
            });
            let alternates = self.solver.alternates(inputs.clone(), published.weights()).await;
            let after_trial = self.publisher.held().filter(|held| held_weights.is_none() && !held.audience.is_empty());
            let why = match after_trial {
                Some(held) => format!("what was on trial in cluster {} breaks a rule by now", held.audience.join(", ")),
                None => content.reason.clone(),
            };
            let content = Snapshot { alternates: build::alternates(&alternates), reason: why.clone(), ..content };
            let shown = match &trial {
                Some((cluster, ..)) => {
                    let reason = format!("on trial in cluster {cluster}: {why}");
                    Snapshot { audience: vec![cluster.clone()], reason, ..content.clone() }
                }
                None => content.clone(),
            };
            let snapshot = self.publisher.publish(shown).await.map_err(|error| format!("cannot publish: {error}"))?;
            if let (Some((_, mix, before)), Some(canary), Some(held)) = (trial, &mut self.canary, &held_weights) {
                canary.begin(now, fleet, inputs, held, mix, (snapshot.generation, content, before));
            }
            let generation = Generation(snapshot.generation);
            tracing::info!(%generation, objective_ms = snapshot.objective_ms, reason, "published");
            for refused in shed::shed_bill(fleet, inputs, &published) {
                tracing::warn!(%generation, "{refused}");
            }
            for detour in report::detours(fleet, inputs, &published) {
                tracing::warn!(%generation, "{detour}");
            }
            self.status.published += 1;
            let regions = self.solver.region_losses(inputs.clone()).await;
            for loss in regions.iter().filter(|loss| loss.shortfall_rps > 0.0) {
                if !self.status.regions.iter().any(|known| known.region == loss.region && known.shortfall_rps > 0.0) {
                    tracing::warn!(%generation, "{loss}");
                }
            }
            self.status.regions = regions;
            self.explained.send_replace(Some(Arc::new(explained(generation, published))));
        } else if self.explained.borrow().is_none()
            && let Some(held) = self.publisher.held()
        {
            // After a restart: the plan that kept the weights explains them, as it was made from them.
            self.explained.send_replace(Some(Arc::new(explained(Generation(held.generation), plan.clone()))));
        }
        Ok(reason)
    }

    /// Brings the status up to date and hands it to whoever watches.
    fn tell_status(&mut self) {
        let now = self.clock.now();
        self.status.clusters = self.measured.clusters(now);
        self.status.engines = self.measured.engines(now);
        for (engine, present) in self.status.engines.iter_mut().zip(&self.present) {
            engine.present = Some(present.clone());
        }
        self.status.trial = self.canary.as_ref().and_then(|canary| canary.describe(now));
        self.status_sender.send_replace(self.status.clone());
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

    /// Gives up the lead, so that another controller takes over at once.
    pub async fn resign(&self) {
        if self.ask(Command::Resign).await.is_err() {
            tracing::debug!("the control plane has ended before it could resign");
        }
    }
}

/// The controller of this very process as a store.
impl Store for ControllerHandle {
    async fn newer_than(&self, held: Held) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let mut snapshots = self.snapshots.clone();
        let published = snapshots.borrow().as_deref().map(Held::of).unwrap_or_default();
        // The same number on other content tells of a store that was lost, just as a higher number does.
        let is_foreign = held.generation == published.generation && held.digest != published.digest && !held.digest.is_empty();
        note(&self.seen, Generation(held.generation.0.saturating_add(u64::from(is_foreign))));
        let newer = |s: &Option<Arc<Snapshot>>| s.as_ref().is_some_and(|s| s.generation > held.generation.0);
        match tokio::time::timeout(LONG_POLL, snapshots.wait_for(newer)).await {
            Ok(Ok(snapshot)) => Ok(snapshot.clone()),
            _ => Ok(None),
        }
    }

    async fn read(&self, generation: Generation) -> Result<Snapshot, StoreError> {
        self.dir.read(generation).await
    }

    async fn generations(&self) -> Result<Vec<Generation>, StoreError> {
        self.dir.generations().await
    }
}

/// What each engine of the fleet has and takes under `weights`.
fn present(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights]) -> Vec<EnginePresent> {
    let of = |engine: &EngineEvaluation| EnginePresent {
        capacity_rps: engine.capacity_rps,
        load_rps: engine.load_rps,
        latency_ms: engine.latency_ms,
    };
    evaluate(fleet, inputs, weights).engines.iter().map(of).collect()
}

/// Marks the routes whose weights an operator has set.
fn label(routes: &mut [Route], by_hand: &[(ClusterId, ClassId)]) {
    routes.iter_mut().for_each(|route| route.pinned = by_hand.contains(&(route.cluster, route.class)));
}

/// The snapshot with marks that are true now; `None` where they are already, or while it is on trial.
fn relabelled(held: &Snapshot, by_hand: &[(ClusterId, ClassId)]) -> Option<Snapshot> {
    let mut routes = held.routes.clone();
    label(&mut routes, by_hand);
    if !held.audience.is_empty() || routes == held.routes {
        return None;
    }
    let changed = held.routes.iter().zip(&routes).filter(|(before, after)| before.pinned != after.pinned);
    let name = |(_, route): (&Route, &Route)| {
        let (cluster, class) = (&held.clusters[route.cluster.index()].name, &held.classes[route.class.index()].name);
        format!("{class} of {cluster} {}", if route.pinned { "are set by hand" } else { "are no longer set by hand" })
    };
    let reason = format!("the weights stay; those of {}", changed.map(name).collect::<Vec<_>>().join(", those of "));
    Some(Snapshot { reason, routes, ..held.clone() })
}

/// Remembers a generation that somebody holds.
fn note(seen: &watch::Sender<Generation>, generation: Generation) {
    if !generation.is_plausible() {
        tracing::warn!(generation = generation.0, "somebody claims a generation that no controller publishes; ignored");
        return;
    }
    seen.send_if_modified(|highest| std::mem::replace(highest, generation.max(*highest)) < generation);
}

/// Hands on the reports that come by way of etcd, for as long as the controller runs.
async fn take_reports(mut reports: Reports, commands: mpsc::Sender<Command>) {
    let mut backoff = BACKOFF_FIRST;
    loop {
        match reports.next().await {
            Ok(fresh) => {
                backoff = BACKOFF_FIRST;
                for report in fresh {
                    let (done, answer) = oneshot::channel();
                    if commands.send(Command::Report(report, done)).await.is_err() {
                        return;
                    }
                    if let Ok(Err(error)) = answer.await {
                        tracing::debug!(%error, "passing over a demand report");
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "no demand reports from etcd");
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MOST);
            }
        }
    }
}
