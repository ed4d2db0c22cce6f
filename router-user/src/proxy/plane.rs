//! State that the workers of one data plane share with the rest of the program: the routes in use,
//! and the counters.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::admission::Admission;
use super::bounded::ClassLoads;
use super::outliers::Outliers;
use super::retries::SharedRetries;
use super::stats::{self, DataPlaneStats, WorkerStats};
use super::stored::Holders;
use crate::clock::Clock;
use crate::model::EngineId;
use crate::policy::Millis;
use crate::policy::outlier::Evidence;
use crate::publish::routes::Routes;

pub struct DataPlane {
    /// The front-end cluster at whose entry this data plane stands.
    pub cluster: String,
    /// `None` until the first snapshot; until then requests are refused as not ready.
    pub routes: ArcSwapOption<Routes>,
    /// Engine name -> address to use in place of the engine's own, such as that of a delay proxy.
    via: HashMap<String, SocketAddr>,
    workers: Mutex<Vec<Arc<WorkerStats>>>,
    pub(super) admission: Arc<Admission>,
    pub(super) outliers: Outliers,
    pub(super) class_loads: ClassLoads,
    /// Its workers read time from this one clock, so that they can share what depends on it.
    pub(super) clock: Clock,
    /// The judgement of [`Self::judge_readiness`].
    readiness: OnceLock<Readiness>,
    /// Locked only by requests on paths of stored objects, each time for about a microsecond.
    pub(super) holders: Mutex<Holders>,
    pub(super) retries: Arc<SharedRetries>,
}

/// Why no request can be served now, where none can.
type Readiness = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

impl DataPlane {
    pub fn new(cluster: String, via: HashMap<String, SocketAddr>) -> Arc<Self> {
        let clock = Clock::start();
        Arc::new(Self {
            cluster,
            routes: ArcSwapOption::empty(),
            via,
            workers: Mutex::default(),
            admission: Arc::new(Admission::new(clock)),
            outliers: Outliers::default(),
            class_loads: ClassLoads::default(),
            clock,
            readiness: OnceLock::new(),
            holders: Mutex::default(),
            retries: Arc::new(SharedRetries::new(0)),
        })
    }

    /// Lets `/readyz` of this data plane answer by `readiness` from now on; until then, routes are
    /// enough to be ready. Only the first call counts.
    pub fn judge_readiness(&self, readiness: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.readiness.get_or_init(|| Box::new(readiness));
    }

    pub(super) fn readiness(&self) -> Result<(), String> {
        self.readiness.get().map_or(Ok(()), |judge| judge())
    }

    /// Puts new routes in use. Requests that have begun keep the routes they began with.
    pub fn apply(&self, routes: Routes) {
        self.outliers.adopt(&routes.snapshot.engines, |entry| self.address(&entry.name, entry.address), self.now());
        self.routes.store(Some(Arc::new(routes)));
    }

    /// Address at which each engine of the routes in use is reached, by name.
    pub fn addresses(&self) -> Vec<(String, SocketAddr)> {
        let routes = self.routes.load();
        let engines = routes.iter().flat_map(|routes| &routes.snapshot.engines);
        engines.map(|of| (of.name.clone(), self.via.get(&of.name).copied().unwrap_or(of.address))).collect()
    }

    /// Where the engines are reached that are eligible for some class of this cluster.
    pub fn eligible_addresses(&self) -> Vec<SocketAddr> {
        let Some(routes) = self.routes.load_full() else { return Vec::new() };
        let candidates = routes.classes.iter().flat_map(|class| &class.candidates).map(|candidate| candidate.engine);
        let eligible: BTreeSet<EngineId> = candidates.collect();
        let engines = eligible.into_iter().map(|engine| &routes.snapshot.engines[engine.index()]);
        engines.map(|entry| self.address(&entry.name, entry.address)).collect()
    }

    /// Connections made to engines and answers of engines: it grows while any engine can be
    /// reached.
    pub fn contacts(&self) -> u64 {
        stats::contacts(&self.workers.lock())
    }

    /// Sums the workers' counters. Counters that change together may differ by one request per
    /// worker.
    pub fn stats(&self) -> DataPlaneStats {
        let workers = self.workers.lock().clone();
        let mut stats = stats::sum(&self.cluster, self.routes.load().as_deref(), &workers);
        {
            let holders = self.holders.lock();
            (stats.stored_ids, stats.stored_ids_evicted) = (holders.len() as u64, holders.evicted());
        }
        self.admission.fill(&mut stats.queue);
        let views = self.outliers.views(self.now());
        for engine in &mut stats.engines {
            if let Some(view) = views.get(&engine.engine) {
                (engine.state, engine.multiplier, engine.reason) = (view.state, view.multiplier, view.reason);
            }
        }
        stats
    }

    /// Engines with connect failures: whether the engine is ejected for them, and the failures
    /// since the start.
    pub fn failing(&self) -> BTreeMap<String, (bool, u64)> {
        let workers = self.workers.lock().clone();
        let views = self.outliers.views(self.now());
        let is_out = |engine: &str| {
            let view = views.get(engine).filter(|view| view.multiplier == 0.0);
            view.is_some_and(|view| matches!(view.reason, Some(Evidence::Refused | Evidence::Unreachable)))
        };
        stats::connect_failures(&workers).into_iter().map(|(name, count)| (name.clone(), (is_out(&name), count))).collect()
    }

    fn now(&self) -> Millis {
        self.clock.now().as_millis() as Millis
    }

    /// Address at which an engine is reached from here.
    pub fn address(&self, engine: &str, own: SocketAddr) -> SocketAddr {
        self.via.get(engine).copied().unwrap_or(own)
    }

    /// Workers that have started.
    pub(super) fn workers(&self) -> usize {
        self.workers.lock().len()
    }

    pub(super) fn join(&self) -> Arc<WorkerStats> {
        let worker = Arc::new(WorkerStats::new());
        self.workers.lock().push(Arc::clone(&worker));
        worker
    }
}
