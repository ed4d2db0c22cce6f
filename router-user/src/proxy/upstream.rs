//! One worker's engines: their addresses, their judgement and the pool of idle connections to each.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::bounded::{ClassBounds, ClassFlight};
use super::counter::Counter;
use super::engine_load::{EngineLoad, allowed_for, expected_for};
use super::http1::response::Response;
use super::outliers::Judged;
use super::plane::DataPlane;
use super::stats::{ClassCounters, EngineCounters, WorkerStats};
use super::timers::Timers;
use super::waits::Waits;
use crate::config::ProxyConfig;
use crate::io::{Connection, Stream};
use crate::model::{ClassId, EngineId};
use crate::policy::outlier::{self, Evidence};
use crate::policy::pick::Availability;
use crate::policy::silence::Wait;
use crate::policy::{Millis, affinity};
use crate::publish::routes::Routes;

pub(super) struct Engine<S: Stream> {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) counters: Arc<EngineCounters>,
    /// Shared with the other workers, as is the judgement.
    pub(super) load: Arc<EngineLoad>,
    pub(super) judged: Arc<Judged>,
    pub(super) waits: Waits,
    /// Requests in flight, of this worker.
    in_flight: Cell<usize>,
    /// Pool of idle connections; the most recently used one is last and is taken first.
    idle: RefCell<Vec<Idle<S>>>,
}

struct Idle<S: Stream> {
    connection: Connection<S>,
    since: Millis,
}

impl<S: Stream> Engine<S> {
    /// Whether the engine can take the request of `key`. `in_panic` lifts soft ejections.
    #[inline]
    pub(super) fn availability(&self, key: u64, in_panic: bool, in_flight_max: usize) -> Availability {
        if self.in_flight.get() >= in_flight_max {
            Availability::Full
        } else if self.judged.is_whole() || (in_panic && self.judged.is_ejected_softly()) {
            Availability::Available
        } else if self.judged.is_ejected() {
            Availability::Out
        } else if self.judged.keeps(key) {
            Availability::Available
        } else {
            Availability::Reduced
        }
    }

    pub(super) fn is_full(&self, in_flight_max: usize) -> bool {
        self.in_flight.get() >= in_flight_max
    }

    /// Counts a request as in flight until the returned guard is dropped.
    pub(super) fn begin(self: &Rc<Self>, timers: &Rc<Timers>) -> InFlight<S> {
        self.in_flight.set(self.in_flight.get() + 1);
        self.load.begin();
        self.counters.in_flight.add(1);
        self.counters.picks.add(1);
        // Whether an end of it decides about the engine's return.
        let is_test = self.judged.is_ejected();
        InFlight { engine: Rc::clone(self), timers: Rc::clone(timers), is_test, is_judged: Cell::new(false) }
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

    /// Looks whether the engine has fallen silent; true when that has just been found. `worker` is
    /// the number of this one.
    pub(super) fn is_silent_now(&self, worker: usize, now: Millis) -> bool {
        let waits = &self.waits;
        if waits.is_empty() && waits.told.get() == 0.0 {
            return false;
        }
        let suspicion = waits.suspicion(self.judged.hear(waits.heard()), now);
        if waits.told.replace(suspicion) == 0.0 && suspicion == 0.0 {
            return false;
        }
        self.judged.suspect(worker, suspicion, now)
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
pub(super) struct InFlight<S: Stream> {
    pub(super) engine: Rc<Engine<S>>,
    timers: Rc<Timers>,
    is_test: bool,
    is_judged: Cell<bool>,
}

impl<S: Stream> InFlight<S> {
    /// Tells how the request ended at the engine; only the first word counts.
    pub(super) fn ended(&self, evidence: Evidence) {
        if !self.is_judged.replace(true) {
            self.engine.judged.take(evidence, self.timers.coarse(), self.is_test);
        }
    }

    /// The engine asks to be left alone for a while.
    pub(super) fn rests(&self, for_ms: Millis) {
        self.is_judged.set(true);
        self.engine.judged.rest(self.timers.coarse(), for_ms);
    }

    pub(super) fn is_test(&self) -> bool {
        self.is_test
    }

    /// Counts the request as waiting for its answer until the returned guard is dropped.
    pub(super) fn wait(&self, wait: Wait) -> Waiting<S> {
        Waiting { engine: Rc::clone(&self.engine), place: self.engine.waits.begin(wait) }
    }
}

/// A request that waits for the beginning of its answer.
pub(super) struct Waiting<S: Stream> {
    engine: Rc<Engine<S>>,
    place: usize,
}

impl<S: Stream> Drop for Waiting<S> {
    fn drop(&mut self) {
        self.engine.waits.end(self.place);
    }
}

impl<S: Stream> Drop for InFlight<S> {
    fn drop(&mut self) {
        self.engine.in_flight.set(self.engine.in_flight.get() - 1);
        self.engine.load.end();
        self.engine.counters.in_flight.subtract(1);
        if self.is_test && !self.is_judged.get() {
            self.engine.judged.test_lapsed(self.timers.coarse());
        }
    }
}

/// The routes in use, with this worker's engines and counters. A request holds one such view from
/// its begin to its end.
pub(super) struct WorkerRoutes<S: Stream> {
    pub(super) routes: Arc<Routes>,
    engines: Vec<Rc<Engine<S>>>,
    classes: Vec<ClassRoutes>,
    plane: Arc<DataPlane>,
}

struct ClassRoutes {
    counters: Arc<ClassCounters>,
    bounds: ClassBounds,
    /// By engine; each is created at the first pick.
    picks: Box<[OnceCell<Arc<Counter>>]>,
    /// Whether most of its engines are ejected, and at which version of the judgements that was
    /// settled.
    panic: Cell<(u64, bool)>,
}

impl<S: Stream> WorkerRoutes<S> {
    /// Builds the view of `routes`. An engine that keeps its name and address keeps its connections
    /// and its judgement.
    pub(super) fn build(
        routes: Arc<Routes>,
        plane: &Arc<DataPlane>,
        stats: &WorkerStats,
        load_factor: f64,
        before: Option<&Self>,
    ) -> Self {
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
                        judged: plane.outliers.engine(&entry.name, address),
                        in_flight: Cell::new(0),
                        waits: Waits::default(),
                        idle: RefCell::default(),
                    }),
                }
            })
            .collect::<Vec<_>>();
        let classes = (routes.snapshot.classes.iter().enumerate())
            .map(|(number, class)| ClassRoutes {
                counters: stats.class(&class.name),
                bounds: ClassBounds::new(&plane.class_loads, &routes, ClassId::of(number), load_factor),
                picks: (0..engines.len()).map(|_| OnceCell::new()).collect(),
                panic: Cell::new((u64::MAX, false)),
            })
            .collect();
        stats.prune(&routes);
        plane.outliers.prune(&routes);
        Self { routes, engines, classes, plane: Arc::clone(plane) }
    }

    pub(super) fn engine(&self, engine: EngineId) -> &Rc<Engine<S>> {
        &self.engines[engine.index()]
    }

    pub(super) fn engines(&self) -> &[Rc<Engine<S>>] {
        &self.engines
    }

    /// Whether so many engines of a class are ejected that soft ejections do not count.
    #[inline]
    pub(super) fn is_panic(&self, class: ClassId) -> bool {
        let version = self.plane.outliers.version();
        let known = &self.classes[class.index()].panic;
        if known.get().0 != version {
            let candidates = &self.routes.classes[class.index()].candidates;
            let ejected = candidates.iter().filter(|candidate| self.engine(candidate.engine).judged.is_ejected()).count();
            known.set((version, outlier::is_panic(ejected, candidates.len())));
        }
        known.get().1
    }

    /// Whether a request is refused by plan.
    pub(super) fn is_shed(&self, class: ClassId, affinity_key: u64, now: Millis) -> bool {
        let shed_frac = self.routes.classes[class.index()].shed_frac;
        shed_frac > 0.0 && affinity::is_shed(affinity_key, shed_frac) && self.are_planned_engines_full(class, now)
    }

    /// Whether the engines that the plan sends the class to have confirmed lately that they are
    /// full; those that are ejected do not count, unless that may be for being full. The plan's own
    /// word is not enough: a wrong number in it would cost requests.
    fn are_planned_engines_full(&self, class: ClassId, now: Millis) -> bool {
        let candidates = &self.routes.classes[class.index()].candidates;
        let has_plan = candidates.iter().any(|c| c.weight > 0.0);
        let mut engines = (candidates.iter().filter(|c| c.weight > 0.0 || !has_plan))
            .map(|c| self.engine(c.engine))
            .filter(|engine| !engine.judged.is_ejected() || engine.judged.is_ejected_softly())
            .peekable();
        engines.peek().is_some() && engines.all(|engine| engine.load.is_full(now))
    }

    /// Takes what is left of the engines' shares, for the bounds on the others' loads.
    pub(super) fn look(&self) {
        let left = |engine| self.engine(engine).judged.share_frac();
        self.classes.iter().for_each(|class| class.bounds.look(left));
    }

    /// Whether an engine can take the request of a class and a key now.
    #[inline]
    pub(super) fn availability(&self, class: ClassId, engine: EngineId, key: u64, in_flight_max: usize) -> Availability {
        let of_engine = self.engine(engine);
        match of_engine.availability(key, self.is_panic(class), in_flight_max) {
            Availability::Available if self.bounds(class).is_loaded(engine, of_engine.load.in_flight()) => Availability::Loaded,
            other => other,
        }
    }

    fn bounds(&self, class: ClassId) -> &ClassBounds {
        &self.classes[class.index()].bounds
    }

    /// Counts a request of a class as in flight until the returned guard is dropped.
    pub(super) fn begin(&self, class: ClassId, engine: EngineId) -> ClassFlight<'_> {
        self.bounds(class).begin(engine)
    }

    /// Requests in flight to the engines of a class over what they have at capacity, or over the
    /// most that they may have, 0 to 1 and above. Engines that are ejected count for nothing.
    pub(super) fn utilisation(&self, class: ClassId, in_flight_max: usize) -> f64 {
        let (mut in_flight, mut most) = (0, 0.0);
        for id in self.routes.classes[class.index()].candidates.iter().map(|candidate| candidate.engine) {
            let engine = self.engine(id);
            if !engine.judged.is_ejected() {
                in_flight += engine.load.in_flight();
                most += self.bounds(class).at_capacity(id).unwrap_or(f64::INFINITY).min(in_flight_max as f64);
            }
        }
        if most > 0.0 { in_flight as f64 / most } else { 0.0 }
    }

    /// Usual time, in ms, in which an answer of the engine begins.
    pub(super) fn usual_ms(&self, class: ClassId, engine: EngineId, is_stream: bool) -> f64 {
        let snapshot = &self.routes.snapshot;
        let (of_engine, of_class) = (&snapshot.engines[engine.index()], &snapshot.classes[class.index()]);
        self.engine(engine).judged.pace(is_stream) * expected_for(of_engine, of_class, is_stream)
    }

    /// Whether another engine than those of `tried` could take a request now.
    pub(super) fn has_other(&self, class: ClassId, tried: &[EngineId], in_flight_max: usize) -> bool {
        let candidates = self.routes.classes[class.index()].candidates.iter().map(|candidate| candidate.engine);
        candidates.filter(|id| !tried.contains(id)).any(|id| {
            let engine = self.engine(id);
            !engine.judged.is_ejected() && !engine.is_full(in_flight_max)
        })
    }

    /// Takes what an answer that begins now says about its engine's load.
    pub(super) fn note_answer(&self, class: ClassId, engine: EngineId, timers: &Timers, sent_at: Duration, response: &Response) {
        let snapshot = &self.routes.snapshot;
        let (of_engine, of_class) = (&snapshot.engines[engine.index()], &snapshot.classes[class.index()]);
        let delay_ms = timers.elapsed().saturating_sub(sent_at).as_secs_f64() * 1e3;
        let expected_ms = expected_for(of_engine, of_class, response.is_event_stream);
        let engine = self.engine(engine);
        engine.load.answered(timers.now(), response.status, delay_ms, allowed_for(expected_ms));
        if response.status < 300 {
            engine.judged.answered(response.is_event_stream, delay_ms / expected_ms);
        }
    }

    pub(super) fn count_arrival(&self, class: ClassId) {
        self.classes[class.index()].counters.arrivals.add(1);
    }

    /// Counts a request that went past an engine because it is loaded.
    pub(super) fn count_spill(&self, class: ClassId) {
        self.classes[class.index()].counters.spills.add(1);
    }

    pub(super) fn count_pick(&self, class: ClassId, engine: EngineId) {
        let class = &self.classes[class.index()];
        class.picks[engine.index()].get_or_init(|| class.counters.picks(&self.engines[engine.index()].name)).add(1);
    }
}
