//! Counters of the data plane: written by one worker each, without contention, and summed when
//! somebody asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

use super::admission::{QueueCounters, QueueView};
use super::counter::Counter;
use super::histogram::{E2E_BOUNDS, Histogram, ITL_BOUNDS, Latencies, TTFT_BOUNDS};
use crate::policy::outlier::{EngineState, Evidence};
use crate::publish::routes::Routes;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// As it is called in metrics and JSON.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

names!(
    /// What became of a request; each counts in exactly one.
    Outcome {
        /// An engine's answer was delivered whole, whatever its status.
        Ok = "ok",
        /// Answered here: the list of models, health.
        Local = "local",
        ClientBadRequest = "client_bad_request",
        HeadTooLarge = "head_too_large",
        BodyTooLarge = "body_too_large",
        /// The client did not send its request in time.
        ClientTimeout = "client_timeout",
        ModelNotFound = "model_not_found",
        /// Nobody knows which engine holds the object that the request names.
        UnknownId = "unknown_id",
        /// The engine that made the object is no longer part of the fleet.
        HolderGone = "holder_gone",
        NoEligibleEngine = "no_eligible_engine",
        ShedPlanned = "shed_planned",
        /// Every engine tried failed before it answered.
        EnginesUnavailable = "engines_unavailable",
        /// Every engine left has as much in flight as it may.
        EnginesFull = "engines_full",
        /// The engines are full, and the queue has no room for the request.
        QueueFull = "queue_full",
        /// The engines are full, and the request would have waited beyond its deadline, or did.
        QueueDeadline = "queue_deadline",
        /// The queue is full, and the request's user has the most requests in it.
        UserOverShare = "user_over_share",
        /// The bodies held already left no room for another.
        BodiesFull = "bodies_full",
        /// The worker had as many connections as it may, none of them idle.
        Overloaded = "overloaded",
        ClientGone = "client_gone",
        /// The client did not take its answer in time.
        ClientStalled = "client_stalled",
        /// An engine's answer was not HTTP.
        EngineBadResponse = "engine_bad_response",
        /// Two engines closed the connection before they answered, so the request may be the
        /// reason, and no third one got it.
        Poison = "poison",
        EngineBrokeMidStream = "engine_broke_mid_stream",
        TtftTimeout = "ttft_timeout",
        GapTimeout = "gap_timeout",
        NotReady = "not_ready",
    }
);

names!(
    /// Why a request was sent once more.
    Retry {
        /// The engine could not be reached: the next one.
        ConnectFailed = "connect_failed",
        /// A kept connection had been closed: the same engine, on a new connection.
        StaleConnection = "stale_connection",
        /// The engine closed the connection before it answered: the next one.
        Reset = "reset",
        /// The engine's answer was not HTTP: the next one.
        BadResponse = "bad_response",
        /// The engine answered with a status of 500 and above, or 404 for its own model: the next
        /// one.
        EngineError = "engine_error",
        /// The engine answered that it has too much to do: the next one.
        Busy = "busy",
        /// The engine has fallen silent, or did not pass a test in time: the next one.
        Late = "late",
    }
);

/// What one worker counts.
#[derive(Debug)]
pub(super) struct WorkerStats {
    pub(super) connections: Counter,
    pub(super) requests: Counter,
    outcomes: [Counter; Outcome::ALL.len()],
    retries: [Counter; Retry::ALL.len()],
    retries_denied: Counter,
    pub(super) client_retries: Counter,
    pub(super) queue: QueueCounters,
    classes: Mutex<BTreeMap<String, Arc<ClassCounters>>>,
    engines: Mutex<BTreeMap<String, Arc<EngineCounters>>>,
}

#[derive(Debug, Default)]
pub(super) struct ClassCounters {
    pub(super) arrivals: Counter,
    pub(super) spills: Counter,
    picks: Mutex<BTreeMap<String, Arc<Counter>>>,
}

#[derive(Debug)]
pub(super) struct EngineCounters {
    pub(super) in_flight: Counter,
    pub(super) picks: Counter,
    /// By the hundreds of the status, 1xx to 5xx; others count as 5xx.
    served: [Counter; 5],
    pub(super) connects: Counter,
    pub(super) connect_failures: Counter,
    pub(super) resets: Counter,
    pub(super) replays: Counter,
    pub(super) broken_streams: Counter,
    /// By [`Evidence::FAILURES`].
    failures: [Counter; Evidence::FAILURES.len()],
    /// From sending the request to the first byte of the answer's body.
    pub(super) ttft: Histogram,
    /// Between two events of an event stream.
    pub(super) itl: Histogram,
    /// From sending the request to the last byte of a whole answer.
    pub(super) e2e: Histogram,
    pub(super) events: Counter,
    pub(super) bytes: Counter,
}

impl Default for EngineCounters {
    fn default() -> Self {
        Self {
            in_flight: Counter::default(),
            picks: Counter::default(),
            served: Default::default(),
            connects: Counter::default(),
            connect_failures: Counter::default(),
            resets: Counter::default(),
            replays: Counter::default(),
            broken_streams: Counter::default(),
            failures: Default::default(),
            ttft: Histogram::new(&TTFT_BOUNDS),
            itl: Histogram::new(&ITL_BOUNDS),
            e2e: Histogram::new(&E2E_BOUNDS),
            events: Counter::default(),
            bytes: Counter::default(),
        }
    }
}

impl EngineCounters {
    /// Counts an answer by its status.
    pub(super) fn answered(&self, status: u16) {
        self.served[usize::from(status / 100).clamp(1, 5) - 1].add(1);
    }

    /// Counts a request that failed at the engine.
    pub(super) fn failed(&self, evidence: Evidence) {
        if let Some(at) = Evidence::FAILURES.iter().position(|&failure| failure == evidence) {
            self.failures[at].add(1);
        }
    }
}

impl WorkerStats {
    pub(super) fn new() -> Self {
        Self {
            connections: Counter::default(),
            requests: Counter::default(),
            outcomes: std::array::from_fn(|_| Counter::default()),
            retries: std::array::from_fn(|_| Counter::default()),
            retries_denied: Counter::default(),
            client_retries: Counter::default(),
            queue: QueueCounters::default(),
            classes: Mutex::default(),
            engines: Mutex::default(),
        }
    }

    pub(super) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].add(1);
    }

    pub(super) fn retried(&self, retry: Retry) {
        self.retries[retry as usize].add(1);
    }

    pub(super) fn retry_denied(&self) {
        self.retries_denied.add(1);
    }

    pub(super) fn class(&self, name: &str) -> Arc<ClassCounters> {
        entry(&self.classes, name)
    }

    pub(super) fn engine(&self, name: &str) -> Arc<EngineCounters> {
        entry(&self.engines, name)
    }

    /// Forgets engines and classes that are not in `routes` and have nothing in flight, so that
    /// names that come and go cost nothing.
    pub(super) fn prune(&self, routes: &Routes) {
        let snapshot = &routes.snapshot;
        let mut engines = self.engines.lock();
        engines.retain(|name, e| e.in_flight.value() > 0 || snapshot.engines.iter().any(|known| known.name == *name));
        let mut classes = self.classes.lock();
        classes.retain(|name, _| snapshot.classes.iter().any(|known| known.name == *name));
    }
}

impl ClassCounters {
    pub(super) fn picks(&self, engine: &str) -> Arc<Counter> {
        entry(&self.picks, engine)
    }
}

fn entry<T: Default>(map: &Mutex<BTreeMap<String, Arc<T>>>, name: &str) -> Arc<T> {
    let mut map = map.lock();
    if let Some(known) = map.get(name) {
        return Arc::clone(known);
    }
    let new = Arc::<T>::default();
    map.insert(name.to_owned(), Arc::clone(&new));
    new
}

/// The data plane's counters at one moment, summed over its workers since it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DataPlaneStats {
    pub cluster: String,
    /// Of the snapshot in use; `None` before the first.
    pub generation: Option<u64>,
    pub workers: usize,
    /// Open client connections.
    pub connections: u64,
    /// Requests begun.
    pub requests: u64,
    pub outcomes: BTreeMap<&'static str, u64>,
    pub retries: BTreeMap<&'static str, u64>,
    /// Retries that would have been right, but were above the budget.
    pub retries_denied: u64,
    /// Stored objects whose engine is known.
    pub stored_ids: u64,
    /// Ids of stored objects that were forgotten because there were too many.
    pub stored_ids_evicted: u64,
    /// Requests that their clients had sent before, as far as that can be told.
    pub client_retries: u64,
    pub queue: QueueView,
    pub classes: Vec<ClassStats>,
    pub engines: Vec<EngineStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassStats {
    pub class: String,
    pub model: String,
    /// Requests of the class, each counted once, when it arrived.
    pub arrivals: u64,
    /// Picks that went past an engine because it had more than its share of the requests in flight.
    pub spills: u64,
    /// Engine -> how often it was picked, retries included.
    pub picks: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EngineStats {
    pub engine: String,
    pub in_flight: u64,
    pub picks: u64,
    /// Answers by the hundreds of their status: 1xx, 2xx, 3xx, 4xx, 5xx.
    pub served: [u64; 5],
    pub connects: u64,
    pub connect_failures: u64,
    /// Connections closed by the engine before it answered.
    pub resets: u64,
    /// Requests sent again because a kept connection had been closed.
    pub replays: u64,
    /// Answers that broke off after they had begun.
    pub broken_streams: u64,
    /// Times from sending the request to the first byte of the answer's body.
    pub ttft: Latencies,
    /// Times between two events of an event stream: TBOT, also called ITL or TPOT.
    pub itl: Latencies,
    /// Times from sending the request to the last byte, of whole answers.
    pub e2e: Latencies,
    /// Events of event streams.
    pub events: u64,
    /// Bytes of answers' bodies, as framed by the engine.
    pub bytes: u64,
    /// Requests that failed at the engine, by how.
    pub failures: BTreeMap<&'static str, u64>,
    pub state: EngineState,
    /// Factor on its share of requests, 0 to 1.
    pub multiplier: f64,
    /// Why it has less than its share.
    pub reason: Option<Evidence>,
}

impl EngineStats {
    /// Requests that failed at the engine; being busy is not a failure.
    pub fn failed(&self) -> u64 {
        self.failures.iter().filter(|(name, _)| **name != Evidence::Busy.name()).map(|(_, count)| count).sum()
    }
}

/// Connections to each engine that failed.
pub(super) fn connect_failures(workers: &[Arc<WorkerStats>]) -> BTreeMap<String, u64> {
    let mut failures: BTreeMap<String, u64> = BTreeMap::new();
    for worker in workers {
        for (name, engine) in worker.engines.lock().iter().filter(|(_, engine)| engine.connect_failures.value() > 0) {
            *failures.entry(name.clone()).or_default() += engine.connect_failures.value();
        }
    }
    failures
}

/// Connections made to engines and answers of engines, by all workers.
pub(super) fn contacts(workers: &[Arc<WorkerStats>]) -> u64 {
    let of_engine =
        |engine: &Arc<EngineCounters>| engine.connects.value() + engine.served.iter().map(Counter::value).sum::<u64>();
    workers.iter().map(|worker| worker.engines.lock().values().map(of_engine).sum::<u64>()).sum()
}

/// Sums what the workers have counted; engines and classes are those of `routes`.
pub(super) fn sum(cluster: &str, routes: Option<&Routes>, workers: &[Arc<WorkerStats>]) -> DataPlaneStats {
    let total = |read: &dyn Fn(&WorkerStats) -> u64| workers.iter().map(|w| read(w)).sum::<u64>();
    let mut stats = DataPlaneStats {
        cluster: cluster.to_owned(),
        generation: routes.map(|r| r.snapshot.generation),
        workers: workers.len(),
        connections: total(&|w| w.connections.value()),
        requests: total(&|w| w.requests.value()),
        outcomes: Outcome::ALL.iter().map(|&o| (o.name(), total(&|w| w.outcomes[o as usize].value()))).collect(),
        retries: Retry::ALL.iter().map(|&r| (r.name(), total(&|w| w.retries[r as usize].value()))).collect(),
        retries_denied: total(&|w| w.retries_denied.value()),
        client_retries: total(&|w| w.client_retries.value()),
        queue: QueueCounters::sum(workers.iter().map(|w| &w.queue)),
        ..Default::default()
    };
    let Some(routes) = routes else { return stats };
    for class in &routes.snapshot.classes {
        let mut of_class = ClassStats { class: class.name.clone(), model: class.model.clone(), ..Default::default() };
        for counters in workers.iter().map(|w| w.class(&class.name)) {
            of_class.arrivals += counters.arrivals.value();
            of_class.spills += counters.spills.value();
            for (engine, picks) in counters.picks.lock().iter() {
                *of_class.picks.entry(engine.clone()).or_default() += picks.value();
            }
        }
        stats.classes.push(of_class);
    }
    for engine in &routes.snapshot.engines {
        let counters: Vec<Arc<EngineCounters>> = workers.iter().map(|w| w.engine(&engine.name)).collect();
        let mut of_engine = EngineStats {
            engine: engine.name.clone(),
            ttft: Latencies::sum_of(counters.iter().map(|e| &e.ttft), &TTFT_BOUNDS),
            itl: Latencies::sum_of(counters.iter().map(|e| &e.itl), &ITL_BOUNDS),
            e2e: Latencies::sum_of(counters.iter().map(|e| &e.e2e), &E2E_BOUNDS),
            multiplier: 1.0,
            ..Default::default()
        };
        for e in &counters {
            of_engine.in_flight += e.in_flight.value();
            of_engine.picks += e.picks.value();
            of_engine.served.iter_mut().zip(&e.served).for_each(|(sum, n)| *sum += n.value());
            of_engine.connects += e.connects.value();
            of_engine.connect_failures += e.connect_failures.value();
            of_engine.resets += e.resets.value();
            of_engine.replays += e.replays.value();
            of_engine.broken_streams += e.broken_streams.value();
            of_engine.events += e.events.value();
            of_engine.bytes += e.bytes.value();
            for (failure, count) in Evidence::FAILURES.iter().zip(&e.failures) {
                *of_engine.failures.entry(failure.name()).or_default() += count.value();
            }
        }
        stats.engines.push(of_engine);
    }
    stats
}
