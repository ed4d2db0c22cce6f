//! The routes in use, as one worker sees them: with its engines, counters and bounds.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::admission::Ticket;
use super::bounded::{ClassBounds, ClassFlight};
use super::counter::Counter;
use super::engine_load::{allowed_for, expected_for};
use super::http1::response::Response;
use super::plane::DataPlane;
use super::reply::ErrorReply;
use super::route::{self, RoutingKey};
use super::stats::{ClassCounters, WorkerStats};
use super::timers::Timers;
use super::upstream::Engine;
use crate::io::Stream;
use crate::model::{ClassId, EngineId};
use crate::policy::Millis;
use crate::policy::admission::{LEVELS, Place, Reach, Refusal, Waiter};
use crate::policy::affinity::{self, Source};
use crate::policy::outlier;
use crate::policy::pick::Availability;
use crate::publish::routes::Routes;

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
    key: u64,
    share: f64,
    /// By engine; each is created at the first pick.
    picks: Box<[OnceCell<Arc<Counter>>]>,
    /// Whether most of its engines are ejected, and at which version of the judgements that was
    /// settled.
    panic: Cell<(u64, bool)>,
}

/// Part of the places that all classes share equally, so that one with little demand does not wait
/// behind a flood; the rest they share by plan.
const EQUAL_FRAC: f64 = 0.5;

/// The share of each class, by its index.
fn planned_shares(routes: &Routes) -> impl Fn(usize) -> f64 + use<> {
    let snapshot = &routes.snapshot;
    let served = |index: usize| {
        snapshot.route(routes.cluster, ClassId::of(index)).map_or(0.0, |route| route.demand_rps * (1.0 - route.shed_frac))
    };
    let served: Vec<f64> = (0..snapshot.classes.len()).map(served).collect();
    let sum: f64 = served.iter().sum();
    move |index| {
        let planned = if sum > 0.0 { served[index] / sum } else { 0.0 };
        EQUAL_FRAC / served.len() as f64 + (1.0 - EQUAL_FRAC) * planned
    }
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
                    _ => Rc::new(Engine::new(&entry.name, address, stats.engine(&entry.name), plane)),
                }
            })
            .collect::<Vec<_>>();
        let share = planned_shares(&routes);
        let classes = (routes.snapshot.classes.iter().enumerate())
            .map(|(number, class)| ClassRoutes {
                counters: stats.class(&class.name),
                bounds: ClassBounds::new(&plane.class_loads, &routes, ClassId::of(number), load_factor),
                key: affinity::key(Source::Class, class.name.as_bytes()),
                share: share(number),
                picks: (0..engines.len()).map(|_| OnceCell::new()).collect(),
                panic: Cell::new((u64::MAX, false)),
            })
            .collect();
        stats.prune(&routes);
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

    /// Why a request is refused before any engine is picked; `None` if it is not.
    pub(super) fn refusal(&self, key: RoutingKey, affinity_key: u64, now: Millis) -> Option<ErrorReply> {
        let class = key.class;
        let route = &self.routes.classes[class.index()];
        if route.candidates.is_empty() {
            return Some(route::no_eligible_engine(class, &self.routes));
        }
        let is_shed = key.is_demand
            && route.shed_frac > 0.0
            && affinity::is_shed(affinity_key, route.shed_frac)
            && self.are_planned_engines_full(class, now);
        is_shed.then(ErrorReply::shed_planned)
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
    pub(super) fn availability(&self, class: ClassId, engine: EngineId, key: u64) -> Availability {
        let of_engine = self.engine(engine);
        match of_engine.availability(key, self.is_panic(class)) {
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
    pub(super) fn has_other(&self, class: ClassId, tried: &[EngineId]) -> bool {
        let candidates = self.routes.classes[class.index()].candidates.iter().map(|candidate| candidate.engine);
        candidates.filter(|id| !tried.contains(id)).any(|id| {
            let engine = self.engine(id);
            !engine.judged.is_ejected() && engine.has_room()
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

    /// Lets a request of a class wait for a place at one of its engines.
    ///
    /// Errors: why it is refused, and the time in ms until those who wait are served.
    pub(super) fn wait(&self, class: ClassId, waiter: Waiter, patience_ms: f64) -> Result<Ticket, (Refusal, f64)> {
        let candidates = &self.routes.classes[class.index()].candidates;
        let engines = candidates.iter().map(|candidate| self.engine(candidate.engine)).map(|e| (&e.load, &*e.judged));
        self.plane.admission.wait(waiter, patience_ms, || self.reach(class), engines)
    }

    /// Tells the queue which engines each class may use now, and offers it the room of all: some
    /// comes without a request that leaves.
    pub(super) fn offer_room(&self) {
        if self.plane.admission.has_waiters() {
            self.plane.admission.set_reach(|key| Some(self.reach(self.class_of(key)?)));
            self.engines.iter().for_each(|engine| engine.offer_room());
        }
    }

    fn reach(&self, class: ClassId) -> Reach {
        let candidates = &self.routes.classes[class.index()].candidates;
        let places = candidates.iter().map(|candidate| self.engine(candidate.engine).load.place).collect();
        Reach { places, in_panic: self.is_panic(class) }
    }

    /// The class with an identity in the queue.
    pub(super) fn class_of(&self, key: u64) -> Option<ClassId> {
        self.classes.iter().position(|class| class.key == key).map(ClassId::of)
    }

    /// The engine with a number in the queue.
    pub(super) fn engine_at(&self, place: Place) -> Option<EngineId> {
        self.engines.iter().position(|engine| engine.load.place == place).map(EngineId::of)
    }

    /// The class's priority in the queue.
    pub(super) fn level(&self, class: ClassId) -> usize {
        usize::from(self.routes.snapshot.classes[class.index()].priority).min(LEVELS - 1)
    }

    /// The class's identity in the queue.
    pub(super) fn class_key(&self, class: ClassId) -> u64 {
        self.classes[class.index()].key
    }

    /// The class's share of the places that requests get which wait for the same engines.
    pub(super) fn share(&self, class: ClassId) -> f64 {
        self.classes[class.index()].share
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
