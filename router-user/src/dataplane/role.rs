//! The state of one cluster's data plane in this process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::dataplane::effective::{Effective, LocalOverrides};
use crate::dataplane::heartbeat::ControllerHeartbeat;
use crate::dataplane::kernel::KernelRole;
use crate::model::Fleet;
use crate::proxy::DataPlane;
use crate::publish::Generation;
use crate::publish::routes::Routes;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{DirStore, Held};

/// What a data plane is made of.
pub struct Setup {
    pub cluster: String,
    pub plane: Arc<DataPlane>,
    pub listen: Vec<SocketAddr>,
    /// Name of the IO driver in use.
    pub io: String,
    /// What this data plane keeps on its own disk.
    pub store: DirStore,
    pub kernel: Option<KernelRole>,
    /// Why there is no kernel plane although it is enabled.
    pub kernel_error: Option<String>,
    /// The fleet of this process's configuration, which knows the distances.
    pub fleet: Fleet,
    pub clock: Clock,
}

/// One cluster's data plane in this process.
///
/// Tasks and views share it. Requests never touch it: they read the tables that
/// [`install`](Self::install) swaps in.
pub struct DataRole {
    setup: Setup,
    /// The newest snapshot for this cluster, as it was published.
    published: ArcSwapOption<Snapshot>,
    /// The newest snapshot that was not addressed to this cluster.
    not_addressed: ArcSwapOption<Held>,
    heartbeat: ControllerHeartbeat,
    /// The last failure to reach the controller, while it lasts.
    controller_error: ArcSwapOption<String>,
    state: Mutex<State>,
    /// Held while tables are swapped in, so that an older state never overtakes a newer one.
    installing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    overrides: LocalOverrides,
    in_use: InUse,
    reachability: Reachability,
    /// Measured distances that are not reported yet, in ms by engine.
    distances: BTreeMap<String, f64>,
}

/// The overrides that the tables in use were built with.
#[derive(Debug)]
struct InUse {
    plan_share: f64,
    failed_over: Vec<String>,
}

impl Default for InUse {
    fn default() -> Self {
        Self { plan_share: 1.0, failed_over: Vec::new() }
    }
}

/// Whether a connection to any eligible engine can be made from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reachability {
    /// Not tried yet.
    #[default]
    Unknown,
    Reachable,
    /// Connections to all of this many engines fail.
    Unreachable(usize),
}

/// A data plane at one moment, for operators.
#[derive(Clone, Debug)]
pub struct DataStatus {
    /// Share of the plan that still counts, 0 to 1.
    pub plan_share: f64,
    /// Engines whose failover weights are in use.
    pub failed_over: Vec<String>,
    /// A snapshot that is newer than the one in use, but was not addressed to this cluster.
    pub not_addressed: Option<Generation>,
    /// How long no controller has been heard of.
    pub silence: Duration,
    pub controller_error: Option<String>,
    pub reachability: Reachability,
}

impl DataRole {
    /// A data plane without a snapshot.
    pub fn new(setup: Setup) -> Arc<Self> {
        Arc::new(Self {
            heartbeat: ControllerHeartbeat::new(setup.clock),
            setup,
            published: ArcSwapOption::empty(),
            not_addressed: ArcSwapOption::empty(),
            controller_error: ArcSwapOption::empty(),
            state: Mutex::default(),
            installing: Mutex::default(),
        })
    }

    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The snapshot whose tables requests use: the published one after overrides. `None` before the
    /// first.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.setup.plane.routes.load().as_ref().map(|routes| Arc::clone(&routes.snapshot))
    }

    pub fn status(&self) -> DataStatus {
        let published = self.published.load();
        let is_newer = |held: &Held| published.as_ref().is_none_or(|published| published.generation < held.generation.0);
        let not_addressed = self.not_addressed.load().as_deref().map(|held| is_newer(held).then_some(held.generation));
        let controller_error = self.controller_error.load().as_ref().map(|error| error.to_string());
        let state = self.state.lock();
        DataStatus {
            plan_share: state.in_use.plan_share,
            failed_over: state.in_use.failed_over.clone(),
            not_addressed: not_addressed.flatten(),
            silence: self.heartbeat.silence(),
            controller_error,
            reachability: state.reachability,
        }
    }

    /// The snapshot as it was published, before overrides.
    pub(super) fn published(&self) -> Option<Arc<Snapshot>> {
        self.published.load_full()
    }

    /// The newest snapshot that this data plane has seen, addressed to it or not.
    pub(super) fn held(&self) -> Held {
        let published = self.published.load().as_deref().map(Held::of).unwrap_or_default();
        let not_addressed = self.not_addressed.load().as_deref().cloned().unwrap_or_default();
        if not_addressed.generation > published.generation { not_addressed } else { published }
    }

    pub(super) fn mark_not_addressed(&self, snapshot: &Snapshot) {
        self.not_addressed.store(Some(Arc::new(Held::of(snapshot))));
    }

    /// Puts a newly published snapshot in use. Blocks: tables of many engines take milliseconds,
    /// and the kernel may block.
    pub(super) fn install(&self, snapshot: Arc<Snapshot>) {
        self.published.store(Some(snapshot));
        // A snapshot that has just come is not stale.
        self.state.lock().overrides.plan_share = 1.0;
        self.swap_tables();
    }

    /// Tells which engines are down as seen from here, and puts their failover weights in use.
    pub(super) async fn mark_down(self: &Arc<Self>, engines: Vec<String>) {
        self.change(|overrides| std::mem::replace(&mut overrides.down, engines.clone()) != engines).await;
    }

    /// Tells how much of the plan still counts, and decays the weights to that.
    pub(super) async fn set_plan_share(self: &Arc<Self>, plan_share: f64) {
        self.change(|overrides| {
            let before = std::mem::replace(&mut overrides.plan_share, plan_share);
            if before == 1.0 && plan_share < 1.0 {
                tracing::warn!("no controller has been heard of for store.stale_after; weights decay toward capacity");
            } else if before < 1.0 && plan_share == 1.0 {
                tracing::info!("a controller is back; its weights are in use again");
            }
            before != plan_share
        })
        .await;
    }

    async fn change(self: &Arc<Self>, change: impl FnOnce(&mut LocalOverrides) -> bool) {
        if !change(&mut self.state.lock().overrides) {
            return;
        }
        let role = Arc::clone(self);
        // Off the runtime's thread, as it blocks.
        if let Err(error) = tokio::task::spawn_blocking(move || role.swap_tables()).await {
            tracing::error!(%error, "failed to build new tables; the previous ones stay in use");
        }
    }

    /// Swaps in the tables of the effective weights: the kernel's first, then the proxy's.
    fn swap_tables(&self) {
        // A panic in here leaves whole tables in use, old or new. The state is read under this
        // lock.
        let _order = self.installing.lock();
        let Some(published) = self.published.load_full() else { return };
        let Some(cluster) = published.cluster(&self.setup.cluster) else { return };
        let overrides = self.state.lock().overrides.clone();
        let Effective { snapshot, failed_over } = overrides.apply(&published, cluster, &self.setup.fleet);
        let routes = Routes::build(snapshot, cluster, self.setup.plane.routes.load().as_deref());
        if let Some(kernel) = &self.setup.kernel {
            kernel.apply(&routes);
        }
        self.setup.plane.apply(routes);
        let now = InUse { plan_share: overrides.plan_share, failed_over };
        let before = std::mem::replace(&mut self.state.lock().in_use, now);
        self.log_failover(Generation(published.generation), &before.failed_over);
    }

    fn log_failover(&self, generation: Generation, before: &[String]) {
        let now = self.state.lock().in_use.failed_over.clone();
        if before == now {
            return;
        }
        match now.join(", ") {
            none if none.is_empty() => tracing::info!(%generation, "no failover weights are in use any more"),
            down => tracing::warn!(%generation, down, "engines cannot be reached; their failover weights are in use"),
        }
    }

    /// A live controller was heard of.
    pub(super) fn renew_contact(&self) {
        self.heartbeat.renew();
    }

    /// How long no controller has been heard of.
    pub(super) fn silence(&self) -> Duration {
        self.heartbeat.silence()
    }

    pub(super) fn controller_answers(&self) {
        if self.controller_error.swap(None).is_some() {
            tracing::info!("the controller answers again");
        }
    }

    pub(super) fn controller_fails(&self, error: String) {
        if self.controller_error.swap(Some(Arc::new(error.clone()))).is_none() {
            tracing::warn!(error, "the controller does not answer; the last snapshot keeps serving");
        }
    }

    pub(super) fn set_reachability(&self, now: Reachability) {
        let before = std::mem::replace(&mut self.state.lock().reachability, now);
        match now {
            Reachability::Unreachable(engines) if before != now => {
                tracing::error!(engines, "no engine can be reached; /readyz answers 503");
            }
            Reachability::Reachable if matches!(before, Reachability::Unreachable(_)) => {
                tracing::info!("an engine can be reached again");
            }
            _ => {}
        }
    }

    /// Keeps a measured distance for the next report.
    pub(super) fn put_distance(&self, engine: String, ms: f64) {
        self.state.lock().distances.insert(engine, ms);
    }

    /// Takes all measured distances, so that each is reported once.
    pub(super) fn take_distances(&self) -> BTreeMap<String, f64> {
        std::mem::take(&mut self.state.lock().distances)
    }

    /// Puts back distances that could not be reported; newer measurements win.
    pub(super) fn put_back_distances(&self, unreported: BTreeMap<String, f64>) {
        let mut state = self.state.lock();
        for (engine, ms) in unreported {
            state.distances.entry(engine).or_insert(ms);
        }
    }
}
