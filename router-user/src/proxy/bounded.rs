//! Requests of each class in flight to each engine, of all workers, and the bounds on them.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::model::{ClassId, EngineId};
use crate::policy::bound::{Bound, in_flight_at_capacity};
use crate::publish::routes::Routes;

/// What all workers share: numbers of requests in flight, by class and engine.
#[derive(Debug, Default)]
pub(super) struct ClassLoads(Mutex<HashMap<String, Arc<ClassLoad>>>);

#[derive(Debug, Default)]
struct ClassLoad {
    in_flight: AtomicUsize,
    engines: Mutex<HashMap<String, Arc<AtomicUsize>>>,
}

/// The entry of a name; what nobody uses any more is forgotten.
fn entry<T: Default>(of: &Mutex<HashMap<String, Arc<T>>>, name: &str) -> Arc<T> {
    let mut of = of.lock();
    of.retain(|_, known| Arc::strong_count(known) > 1);
    Arc::clone(of.entry(name.to_owned()).or_default())
}

/// One class, as one worker sees it.
pub(super) struct ClassBounds {
    load: Arc<ClassLoad>,
    /// By engine; `None` where the class may not go.
    places: Box<[Option<Place>]>,
    /// Sum of the weights that were left to the engines at the last look.
    available_weight: Cell<f64>,
}

struct Place {
    in_flight: Arc<AtomicUsize>,
    bound: Bound,
    weight: f64,
    /// Requests in flight at capacity; 0 where it is not known.
    at_capacity: f64,
}

impl ClassBounds {
    pub(super) fn new(loads: &ClassLoads, routes: &Routes, class: ClassId, factor: f64) -> Self {
        let snapshot = &routes.snapshot;
        let of_class = &snapshot.classes[class.index()];
        let load = entry(&loads.0, &of_class.name);
        let mut places: Vec<Option<Place>> = snapshot.engines.iter().map(|_| None).collect();
        for candidate in &routes.classes[class.index()].candidates {
            let engine = &snapshot.engines[candidate.engine.index()];
            let whole =
                in_flight_at_capacity(engine.capacity_rps, engine.full_ttft_ms, of_class.output_tokens, engine.full_tbot_ms);
            let (weight, at_capacity) = (candidate.weight, whole * flow_share(routes, candidate.engine));
            let in_flight = entry(&load.engines, &engine.name);
            let bound = Bound::new(factor, weight, at_capacity);
            places[candidate.engine.index()] = Some(Place { in_flight, bound, weight, at_capacity });
        }
        let bounds = Self { load, places: places.into(), available_weight: Cell::new(0.0) };
        bounds.look(|_| 1.0);
        bounds
    }

    /// Takes the part of its share, 0 to 1, that is left to each engine.
    pub(super) fn look(&self, left: impl Fn(EngineId) -> f64) {
        let places = self.places.iter().enumerate().filter_map(|(engine, place)| Some((EngineId::of(engine), place.as_ref()?)));
        self.available_weight.set(places.map(|(engine, place)| place.weight * left(engine)).sum());
    }

    /// Whether one more request of the class should go to another engine; `of_all` are the requests
    /// of all classes in flight to this one.
    #[inline]
    pub(super) fn is_loaded(&self, engine: EngineId, of_all: usize) -> bool {
        self.places[engine.index()].as_ref().is_some_and(|place| {
            let (here, of_class) = (place.in_flight.load(Ordering::Relaxed), self.load.in_flight.load(Ordering::Relaxed));
            place.bound.is_loaded(here, of_all, of_class, self.available_weight.get())
        })
    }

    /// Requests in flight to an engine at capacity; `None` where it is not known.
    pub(super) fn at_capacity(&self, engine: EngineId) -> Option<f64> {
        self.places[engine.index()].as_ref().map(|place| place.at_capacity).filter(|&at_capacity| at_capacity > 0.0)
    }

    /// Counts a request as in flight until the returned guard is dropped.
    pub(super) fn begin(&self, engine: EngineId) -> ClassFlight<'_> {
        let flight = ClassFlight { bounds: self, engine };
        flight.numbers().for_each(|number| _ = number.fetch_add(1, Ordering::Relaxed));
        flight
    }
}

/// A request of a class in flight.
pub(super) struct ClassFlight<'a> {
    bounds: &'a ClassBounds,
    engine: EngineId,
}

impl ClassFlight<'_> {
    fn numbers(&self) -> impl Iterator<Item = &AtomicUsize> {
        let here = self.bounds.places[self.engine.index()].as_ref().map(|place| &*place.in_flight);
        std::iter::once(&self.bounds.load.in_flight).chain(here)
    }
}

impl Drop for ClassFlight<'_> {
    fn drop(&mut self) {
        self.numbers().for_each(|number| _ = number.fetch_sub(1, Ordering::Relaxed));
    }
}

/// This cluster's part, 0 to 1, of all requests that the plan sends to an engine; 1 where it sends
/// none.
fn flow_share(routes: &Routes, engine: EngineId) -> f64 {
    let (mut own, mut all) = (0.0, 0.0);
    for route in &routes.snapshot.routes {
        let weight = route.weights.iter().find(|share| share.engine == engine).map_or(0.0, |share| share.weight);
        let flow = route.demand_rps * (1.0 - route.shed_frac) * weight;
        all += flow;
        own += if route.cluster == routes.cluster { flow } else { 0.0 };
    }
    if all > 0.0 { own / all } else { 1.0 }
}
