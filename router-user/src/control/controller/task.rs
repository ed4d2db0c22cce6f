//! The loop of the controller, and its state.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::backoff::Backoff;
use crate::clock::{Clock, unix_ms};
use crate::config::Config;
use crate::control::canary::Canary;
use crate::control::controller::command::{Command, CommandError, PendingOrder};
use crate::control::controller::handle::{ControllerHandle, record_seen};
use crate::control::controller::status::{ControlStatus, Explained};
use crate::control::cycle::CycleError;
use crate::control::engine_orders::{EngineOrders, OrderReply, without_withdrawn};
use crate::control::engines::anomaly::Anomaly;
use crate::control::engines::health::{self, Probe, Verdict};
use crate::control::estimate::state::{EnginePresent, Measured};
use crate::control::leadership::archive::Archive;
use crate::control::leadership::publisher::{Candidacy, Change, Kept, Marks, Publisher};
use crate::control::pins::{HeldPin, Moment, Pins};
use crate::control::planner_thread::{PlanFn, Planned, PlannerThread};
use crate::model::{ClassId, ClusterId};
use crate::plan::decide::regions::RegionLoss;
use crate::plan::{Inputs, Plan, RouteWeights};
use crate::probe::{self, Scrape};
use crate::protocol::DemandReport;
use crate::publish::Generation;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{EtcdStore, Reports, StoreError};
use crate::rng::{self, Rng};

/// Commands, probes and scrapes that wait for the task; senders wait beyond it.
const QUEUE: usize = 256;
/// First and longest pause after etcd gave no reports.
const BACKOFF_FIRST: std::time::Duration = std::time::Duration::from_millis(100);
const BACKOFF_MOST: std::time::Duration = std::time::Duration::from_secs(5);

/// The result of work beside the loop.
pub(super) enum Event {
    /// Work without a result.
    Nothing,
    HeartbeatSent,
    /// Another leader's snapshot, and whether it is newer than the current one.
    Adopted(Arc<Snapshot>, bool),
    TookOver(Result<Kept, StoreError>),
    /// The last snapshot for all clusters before a trial whose controller ended, and the reason for
    /// which it is published again.
    FoundBefore(Option<Snapshot>, String),
    TrialEnded(Result<Arc<Snapshot>, StoreError>),
    Planned(Box<Outcome>),
    Relabelled(Result<Arc<Snapshot>, StoreError>),
    Published(Box<Publication>, Result<Arc<Snapshot>, StoreError>),
    /// The region check and the shed report of a published plan.
    Checked(Generation, Vec<RegionLoss>, Vec<String>),
    Ordered(Box<PendingOrder>, Result<OrderReply, CommandError>),
    PinsKept(Vec<HeldPin>, Then, Result<(), CommandError>),
    RollbackRead(Box<Rollback>, Result<Snapshot, StoreError>),
    RolledBack(Box<Rollback>, Result<Arc<Snapshot>, StoreError>),
}

/// A plan or an error, and the state that the plan was made for.
pub(super) struct Outcome {
    pub(super) planned: Result<Box<Planned>, CycleError>,
    pub(super) revision: u64,
    pub(super) generation: Option<u64>,
    pub(super) took_ms: f64,
}

/// A plan that is being published.
pub(super) struct Publication {
    pub(super) inputs: Inputs,
    pub(super) plan: Plan,
    pub(super) decision: String,
}

/// The next step after the pins are stored.
pub(super) enum Then {
    Pinned(oneshot::Sender<Result<(), CommandError>>),
    Unpinned(usize, oneshot::Sender<Result<usize, CommandError>>),
    RollBack(Box<Rollback>, Box<Snapshot>),
}

/// A rollback under way.
pub(super) struct Rollback {
    pub(super) generation: Generation,
    pub(super) ttl: Option<std::time::Duration>,
    pub(super) done: oneshot::Sender<Result<u64, CommandError>>,
}

/// The control plane's state, owned by one task.
pub struct Controller {
    pub(super) config: Arc<Config>,
    pub(super) clock: Clock,
    /// Locked for one operation at a time, so that what is written to the stores has an order.
    pub(super) publisher: Arc<Mutex<Publisher>>,
    pub(super) candidacy: Candidacy,
    pub(super) archive: Archive,
    pub(super) seen: watch::Sender<Generation>,
    pub(super) measured: Measured,
    pub(super) pins: Pins,
    pub(super) engine_orders: EngineOrders,
    /// Routes whose weights an operator has set, as of the last inputs.
    pub(super) by_hand: Vec<(ClusterId, ClassId)>,
    /// Grows with every change of pins and orders; a plan for a lower number is out of date.
    pub(super) revision: u64,
    pub(super) canary: Canary,
    pub(super) planner: PlannerThread,
    /// Work beside the loop: at most one round, one order, one heartbeat, one check and the
    /// adoption of other leaders' snapshots.
    pub(super) work: JoinSet<Event>,
    /// A plan is made or published; another one is wanted after it.
    pub(super) has_round: bool,
    pub(super) wants_round: bool,
    pub(super) has_heartbeat: bool,
    pub(super) has_check: bool,
    /// Pins are being changed; orders that came meanwhile wait.
    pub(super) has_order: bool,
    pub(super) orders: VecDeque<Command>,
    /// Every engine under the current weights, as of the last plan.
    pub(super) present: Vec<EnginePresent>,
    pub(super) status: ControlStatus,
    status_sender: watch::Sender<ControlStatus>,
    pub(super) explained: watch::Sender<Option<Arc<Explained>>>,
}

impl Controller {
    /// Starts the controller on the current tokio runtime. It goes on from the newest stored
    /// snapshot. With an etcd it stands for election, and publishes only while it leads.
    ///
    /// Errors: the directory cannot be opened or listed.
    pub fn start(config: Arc<Config>, clock: Clock, etcd: Option<EtcdStore>) -> Result<ControllerHandle, StoreError> {
        Self::start_with(config, clock, etcd, None)
    }

    /// The same with `plan` in the place of the optimiser, if there is one.
    ///
    /// Errors: those of [`Self::start`].
    pub fn start_with(
        config: Arc<Config>,
        clock: Clock,
        etcd: Option<EtcdStore>,
        plan: Option<PlanFn>,
    ) -> Result<ControllerHandle, StoreError> {
        let seen = watch::Sender::new(Generation(0));
        let marks = Marks::default();
        let (publisher, candidacy) = Publisher::open(&config, etcd, &seen, Marks::clone(&marks))?;
        let (commands, inbox) = mpsc::channel(QUEUE);
        let (probes, scrapes) = watch_engines(&config);
        let (status_sender, status) = watch::channel(ControlStatus::default());
        let (explained_sender, explained) = watch::channel(None);
        let mut measured = Measured::new(Arc::clone(&config));
        if let Some(current) = candidacy.current() {
            measured.start_from(clock.now(), &current);
        }
        if let Some(reports) = publisher.reports() {
            tokio::spawn(take_reports(reports, commands.clone()));
        }
        let (dir, moment) = (publisher.dir().clone(), Moment { now: clock.now(), unix_ms: unix_ms() });
        let snapshots = candidacy.snapshots();
        let controller = Self {
            clock,
            measured,
            canary: Canary::new(&config),
            pins: Pins::load(&config.store.dir, &config.fleet, moment),
            engine_orders: EngineOrders::load(&config.store.dir, &config.fleet, moment, marks),
            by_hand: Vec::new(),
            revision: 0,
            planner: PlannerThread::start(Arc::clone(&config), plan).expect("the machine has room for one thread"),
            work: JoinSet::new(),
            has_round: false,
            wants_round: false,
            has_heartbeat: false,
            has_check: false,
            has_order: false,
            orders: VecDeque::new(),
            present: Vec::new(),
            status: ControlStatus::default(),
            seen: seen.clone(),
            archive: publisher.archive(),
            publisher: Arc::new(Mutex::new(publisher)),
            candidacy,
            status_sender,
            explained: explained_sender,
            config: Arc::clone(&config),
        };
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
            tokio::select! {
                _ = ticks.tick() => {
                    self.wants_round = true;
                    if self.has_round {
                        self.publish_status();
                    }
                }
                Some(probe) = probes.recv() => self.wants_round |= self.on_probe(probe),
                Some(scrape) = scrapes.recv() => self.wants_round |= self.measured.scrape(self.clock.now(), scrape),
                command = inbox.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => return,
                },
                change = self.candidacy.change() => self.on_leadership(change),
                Some(event) = self.work.join_next() => match event {
                    Ok(event) => self.on_event(event),
                    Err(error) => {
                        tracing::error!(%error, "a task of the controller panicked; going on without its result");
                        (self.has_round, self.has_order, self.has_heartbeat, self.has_check) = (false, false, false, false);
                    }
                },
            }
            self.carry_out_orders();
            self.begin_round();
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Nothing => {}
            Event::HeartbeatSent => self.has_heartbeat = false,
            Event::Adopted(snapshot, is_news) => {
                if is_news {
                    self.measured.start_from(self.clock.now(), &snapshot);
                }
            }
            Event::TookOver(outcome) => self.on_take_over(outcome),
            Event::FoundBefore(before, reason) => {
                self.finish_trial(before.map(|before| Snapshot { reason, target_clusters: Vec::new(), ..before }));
            }
            Event::TrialEnded(outcome) => self.on_trial_ended(outcome),
            Event::Planned(outcome) => self.on_planned(*outcome),
            Event::Relabelled(outcome) => self.on_relabelled(outcome),
            Event::Published(publication, outcome) => self.on_published(*publication, outcome),
            Event::Checked(generation, regions, lines) => self.on_checked(generation, regions, &lines),
            Event::Ordered(pending, outcome) => self.on_ordered(*pending, outcome),
            Event::PinsKept(pins, then, outcome) => self.on_pins_kept(pins, then, outcome),
            Event::RollbackRead(rollback, old) => self.on_rollback_read(rollback, old),
            Event::RolledBack(rollback, outcome) => self.on_rolled_back(*rollback, outcome),
        }
    }

    /// Takes a probe's outcome; true when it changes the plan's inputs.
    fn on_probe(&mut self, probe: Probe) -> bool {
        let Some(verdict) = self.measured.probe(probe) else { return false };
        let name = &self.config.fleet.engines[probe.engine.index()].name;
        match verdict {
            Verdict::Ready => tracing::info!(engine = name, "engine answers again"),
            Verdict::Down => tracing::warn!(engine = name, "engine refuses its health probe; planning without it"),
            Verdict::Unresponsive => {
                tracing::warn!(engine = name, "engine does not answer its health probe in time; planning without it")
            }
        }
        true
    }

    /// Handles gaining or losing the lead, and what other controllers and data planes hold.
    fn on_leadership(&mut self, change: Change) {
        let publisher = Arc::clone(&self.publisher);
        match change {
            Change::Adopt(snapshot) => {
                self.work.spawn(async move {
                    let is_news = publisher.lock().await.adopt(&snapshot).await;
                    Event::Adopted(snapshot, is_news)
                });
            }
            Change::Lead => {
                self.wants_round |= self.status.standby_reason.is_some() != self.candidacy.standby_reason().is_some();
            }
            Change::Behind if self.candidacy.current().is_none() => self.wants_round = true,
            Change::Behind => {
                self.work.spawn(async move {
                    if let Err(error) = publisher.lock().await.catch_up().await {
                        tracing::error!(%error, "cannot publish again");
                    }
                    Event::Nothing
                });
            }
        }
    }

    pub(super) fn take_report(&mut self, report: &DemandReport) -> Result<(), CommandError> {
        self.canary.on_report(self.clock.now(), report);
        record_seen(&self.seen, Generation(report.generation));
        Ok(self.measured.report(self.clock.now(), report)?)
    }

    /// The current weights of all clusters; `None` where there are none, or nobody knows which
    /// cluster uses which.
    pub(super) fn current_weights(&self) -> Option<Vec<RouteWeights>> {
        self.canary.current_weights(&self.config.fleet, &*self.candidacy.current()?)
    }

    /// The inputs of the next plan. What is suspicious in them is logged once, and shown for as
    /// long as it lasts.
    pub(super) fn inputs(&mut self, current: Option<&[RouteWeights]>) -> Inputs {
        let pins = self.pins.active(self.clock.now(), &self.config.fleet);
        self.engine_orders.expire(self.clock.now());
        let withdrawn = self.engine_orders.withdrawn(&self.config.fleet);
        let pins = without_withdrawn(pins, &withdrawn);
        self.measured.set_withdrawn(withdrawn);
        self.by_hand = pins.iter().map(|pin| (pin.cluster, pin.class)).collect();
        let (inputs, anomalies) = self.measured.inputs(self.clock.now(), pins, current);
        for Anomaly { subject, detail } in anomalies.iter().filter(|found| !self.status.anomalies.contains(found)) {
            tracing::warn!(subject, detail, "anomaly in the inputs");
        }
        self.status.anomalies = anomalies;
        inputs
    }

    pub(super) fn moment(&self) -> Moment {
        Moment { now: self.clock.now(), unix_ms: unix_ms() }
    }

    /// Brings the status up to date and hands it to whoever watches.
    pub(super) fn publish_status(&mut self) {
        let now = self.clock.now();
        self.status.clusters = self.measured.clusters(now);
        self.status.engines = self.measured.engines(now);
        for (engine, present) in self.status.engines.iter_mut().zip(&self.present) {
            engine.present = Some(present.clone());
        }
        for engine in &mut self.status.engines {
            engine.order = self.engine_orders.of(&engine.engine).cloned();
        }
        self.status.trial = self.canary.describe(now);
        self.status_sender.send_replace(self.status.clone());
    }
}

/// Starts the tasks that probe and scrape each engine.
fn watch_engines(config: &Config) -> (mpsc::Receiver<Probe>, mpsc::Receiver<Scrape>) {
    let (probe_sender, probes) = mpsc::channel(QUEUE);
    let (scrape_sender, scrapes) = mpsc::channel(QUEUE);
    let (client, seed) = (probe::client(), rng::entropy());
    for engine in config.fleet.engine_ids() {
        let address = config.fleet.engines[engine.index()].address;
        tokio::spawn(health::watch(engine, address, config.control.health_period, probe_sender.clone()));
        if let Some(period) = config.control.scrape_period {
            let rng = Rng::stream(seed, u64::from(engine.0));
            tokio::spawn(probe::watch(client.clone(), engine, address, period, scrape_sender.clone(), rng));
        }
    }
    (probes, scrapes)
}

/// Hands on the reports that come by way of etcd, for as long as the controller runs.
async fn take_reports(mut reports: Reports, commands: mpsc::Sender<Command>) {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
    loop {
        match reports.next().await {
            Ok(fresh) => {
                backoff.reset();
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
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}
