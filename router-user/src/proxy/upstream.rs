//! One worker's engines: their addresses, their health and the pool of idle connections to each.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::counter::Counter;
use super::engine_load::{EngineLoad, allowed_for};
use super::http1::response::Response;
use super::plane::DataPlane;
use super::stats::{ClassCounters, EngineCounters, WorkerStats};
use super::timers::Timers;
use crate::config::ProxyConfig;
use crate::io::{Connection, Stream};
use crate::model::{ClassId, EngineId};
use crate::policy::health::Health;
use crate::policy::pick::Availability;
use crate::policy::{Millis, affinity};
use crate::publish::routes::Routes;

pub(super) struct Engine<S: Stream> {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) counters: Arc<EngineCounters>,
    /// Shared with the other workers.
    pub(super) load: Arc<EngineLoad>,
    /// Requests in flight, of this worker.
    in_flight: Cell<usize>,
    health: Cell<Health>,
    /// Pool of idle connections; the most recently used one is last and is taken first.
    idle: RefCell<Vec<Idle<S>>>,
}

struct Idle<S: Stream> {
    connection: Connection<S>,
    since: Millis,
}

impl<S: Stream> Engine<S> {
    pub(super) fn availability(&self, now: Millis, in_flight_max: usize) -> Availability {
        if self.in_flight.get() >= in_flight_max {
            Availability::Full
        } else if self.health.get().admits(now) {
            Availability::Available
        } else {
            Availability::Out
        }
    }

    /// Counts a request as in flight until the returned guard is dropped.
    pub(super) fn begin(self: &Rc<Self>, now: Millis) -> InFlight<S> {
        self.in_flight.set(self.in_flight.get() + 1);
        self.load.begin();
        self.counters.in_flight.add(1);
        self.counters.picks.add(1);
        self.with_health(|health| health.picked(now));
        InFlight(Rc::clone(self))
    }

    pub(super) fn reached(&self) {
        self.with_health(Health::reached);
    }

    pub(super) fn failed(&self, now: Millis, hard: bool) {
        self.counters.connect_failures.add(1);
        self.with_health(|health| health.failed(now, hard));
    }

    fn with_health(&self, change: impl FnOnce(&mut Health)) {
        let mut health = self.health.get();
        let before = health.state();
        change(&mut health);
        self.health.set(health);
        if health.state() != before {
            self.counters.show(health.state());
            tracing::info!(engine = %self.name, state = ?health.state(), "engine health changed");
        }
    }

    /// Takes an idle connection on which nothing has arrived, neither bytes nor the end.
    pub(super) fn checkout(&self, now: Millis, config: &ProxyConfig) -> Option<Connection<S>> {
        let mut idle = self.idle.borrow_mut();
        while let Some(mut kept) = idle.pop() {
            let age = now.saturating_sub(kept.since);
            if age < config.engine_idle_timeout.as_millis() as Millis && kept.connection.is_quiet() {
                return Some(kept.connection);
            }
        }
        None
    }

    /// Returns a connection to the pool, unless something has arrived on it or the pool is full.
    pub(super) fn checkin(&self, mut connection: Connection<S>, now: Millis, config: &ProxyConfig) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < config.max_idle_per_engine && connection.is_quiet() {
            idle.push(Idle { connection, since: now });
        }
    }

    /// Closes connections that have been idle too long.
    pub(super) fn sweep(&self, now: Millis, config: &ProxyConfig) {
        let oldest = now.saturating_sub(config.engine_idle_timeout.as_millis() as Millis);
        let mut idle = self.idle.borrow_mut();
        let stale = idle.iter().take_while(|i| i.since < oldest).count();
        idle.drain(..stale);
    }
}

/// A request in flight to an engine.
pub(super) struct InFlight<S: Stream>(Rc<Engine<S>>);

impl<S: Stream> Drop for InFlight<S> {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.load.end();
        self.0.counters.in_flight.subtract(1);
    }
}

/// The routes in use, with this worker's engines and counters. A request holds one such view from
/// its begin to its end.
pub(super) struct WorkerRoutes<S: Stream> {
    pub(super) routes: Arc<Routes>,
    engines: Vec<Rc<Engine<S>>>,
    classes: Vec<ClassRoutes>,
}

struct ClassRoutes {
    counters: Arc<ClassCounters>,
    /// By engine; each is created at the first pick.
    picks: Box<[OnceCell<Arc<Counter>>]>,
}

impl<S: Stream> WorkerRoutes<S> {
    /// Builds the view of `routes`. An engine that keeps its name and address keeps its connections
    /// and its health.
    pub(super) fn build(routes: Arc<Routes>, plane: &DataPlane, stats: &WorkerStats, before: Option<&Self>) -> Self {
        let known: HashMap<&str, &Rc<Engine<S>>> =
            before.map(|b| b.engines.iter().map(|e| (e.name.as_str(), e)).collect()).unwrap_or_default();
        let engines = (routes.snapshot.engines.iter())
            .map(|entry| {
                let address = plane.address(&entry.name, entry.address);
                match known.get(entry.name.as_str()) {
                    Some(engine) if engine.address == address => Rc::clone(engine),
                    _ => Rc::new(Engine {
                        name: entry.name.clone(),
                        address,
                        counters: stats.engine(&entry.name),
                        load: plane.loads.of(&entry.name, address),
                        in_flight: Cell::new(0),
                        health: Cell::default(),
                        idle: RefCell::default(),
                    }),
                }
            })
            .collect::<Vec<_>>();
        let classes = (routes.snapshot.classes.iter())
            .map(|class| ClassRoutes {
                counters: stats.class(&class.name),
                picks: (0..engines.len()).map(|_| OnceCell::new()).collect(),
            })
            .collect();
        stats.prune(&routes);
        Self { routes, engines, classes }
    }

    pub(super) fn engine(&self, engine: EngineId) -> &Rc<Engine<S>> {
        &self.engines[engine.index()]
    }

    pub(super) fn engines(&self) -> &[Rc<Engine<S>>] {
        &self.engines
    }

    /// Whether a request is refused by plan.
    pub(super) fn is_shed(&self, class: ClassId, affinity_key: u64, now: Millis, in_flight_max: usize) -> bool {
        let shed_frac = self.routes.classes[class.index()].shed_frac;
        shed_frac > 0.0 && affinity::is_shed(affinity_key, shed_frac) && self.are_planned_engines_full(class, now, in_flight_max)
    }

    /// Whether the engines that the plan sends the class to have confirmed lately that they are
    /// full; those that cannot be reached do not count. The plan's own word is not enough: a wrong
    /// number in it would cost requests.
    fn are_planned_engines_full(&self, class: ClassId, now: Millis, in_flight_max: usize) -> bool {
        let candidates = &self.routes.classes[class.index()].candidates;
        let has_plan = candidates.iter().any(|c| c.weight > 0.0);
        let mut engines = (candidates.iter().filter(|c| c.weight > 0.0 || !has_plan))
            .map(|c| self.engine(c.engine))
            .filter(|engine| engine.availability(now, in_flight_max) != Availability::Out)
            .peekable();
        engines.peek().is_some() && engines.all(|engine| engine.load.is_full(now))
    }

    /// Requests in flight to the engines of a class over the most that they may have, 0 to 1.
    /// Engines that are out count for nothing.
    pub(super) fn utilisation(&self, class: ClassId, now: Millis, in_flight_max: usize) -> f64 {
        let candidates = self.routes.classes[class.index()].candidates.iter().map(|candidate| self.engine(candidate.engine));
        let (mut in_flight, mut bound) = (0, 0);
        for engine in candidates.filter(|engine| engine.health.get().admits(now)) {
            in_flight += engine.load.in_flight();
            bound += in_flight_max;
        }
        in_flight as f64 / bound.max(1) as f64
    }

    /// Takes what an answer that begins now says about its engine's load.
    pub(super) fn note_answer(&self, class: ClassId, engine: EngineId, timers: &Timers, sent_at: Duration, response: &Response) {
        let snapshot = &self.routes.snapshot;
        let (of_engine, of_class) = (&snapshot.engines[engine.index()], &snapshot.classes[class.index()]);
        let delay_ms = timers.elapsed().saturating_sub(sent_at).as_secs_f64() * 1e3;
        let allowed_ms = allowed_for(of_engine, of_class, response.is_event_stream);
        self.engine(engine).load.answered(timers.now(), response.status, delay_ms, allowed_ms);
    }

    pub(super) fn count_arrival(&self, class: ClassId) {
        self.classes[class.index()].counters.arrivals.add(1);
    }

    pub(super) fn count_pick(&self, class: ClassId, engine: EngineId) {
        let class = &self.classes[class.index()];
        class.picks[engine.index()].get_or_init(|| class.counters.picks(&self.engines[engine.index()].name)).add(1);
    }
}
