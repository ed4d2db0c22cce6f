//! One worker's engines: their addresses, their judgement and the pool of idle connections to each.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::admission::Admission;
use super::engine_load::EngineLoad;
use super::outliers::Judged;
use super::plane::DataPlane;
use super::stats::EngineCounters;
use super::timers::Timers;
use super::waits::Waits;
use crate::config::ProxyConfig;
use crate::io::{Connection, Stream};
use crate::policy::Millis;
use crate::policy::outlier::Evidence;
use crate::policy::pick::Availability;
use crate::policy::silence::Wait;

pub(super) struct Engine<S: Stream> {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) counters: Arc<EngineCounters>,
    /// Shared with the other workers, as are the judgement and the queue.
    pub(super) load: Arc<EngineLoad>,
    pub(super) judged: Arc<Judged>,
    pub(super) waits: Waits,
    admission: Arc<Admission>,
    /// Pool of idle connections; the most recently used one is last and is taken first.
    idle: RefCell<Vec<Idle<S>>>,
}

/// A connection to an engine. Boxed, since each step of a request hands it on.
pub(super) type Upstream<S> = Box<Connection<S>>;

struct Idle<S: Stream> {
    connection: Upstream<S>,
    since: Millis,
}

impl<S: Stream> Engine<S> {
    /// An engine of a data plane, without connections.
    pub(super) fn new(name: &str, address: SocketAddr, counters: Arc<EngineCounters>, plane: &DataPlane) -> Self {
        Self {
            name: name.to_owned(),
            address,
            counters,
            load: plane.admission.loads.of(name, address),
            judged: plane.outliers.engine(name, address),
            waits: Waits::default(),
            admission: Arc::clone(&plane.admission),
            idle: RefCell::default(),
        }
    }

    /// Whether the engine can take the request of `key`. `in_panic` lifts soft ejections.
    #[inline]
    pub(super) fn availability(&self, key: u64, in_panic: bool) -> Availability {
        let is_open = self.judged.is_whole() || (in_panic && self.judged.is_ejected_softly());
        if !is_open && self.judged.is_ejected() {
            Availability::Out
        } else if !self.has_room() {
            Availability::Full
        } else if is_open || self.judged.keeps(key) {
            Availability::Available
        } else {
            Availability::Reduced
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.admission.has_room(&self.load)
    }

    /// Gives the room that the engine has to requests that wait for it.
    #[inline]
    pub(super) fn offer_room(&self) {
        self.admission.offer(&self.load, &self.judged);
    }

    /// Counts a request as in flight until the returned guard is dropped. `has_place` says that it
    /// has waited for its place and has taken it.
    pub(super) fn begin(self: &Rc<Self>, timers: &Rc<Timers>, has_place: bool) -> InFlight<S> {
        if !has_place {
            self.load.enter();
        }
        self.counters.in_flight.add(1);
        self.counters.picks.add(1);
        // Whether an end of it decides about the engine's return.
        let is_test = self.judged.is_ejected();
        InFlight {
            engine: Rc::clone(self),
            timers: Rc::clone(timers),
            is_test,
            is_judged: Cell::new(false),
            is_waiting: Cell::new(true),
        }
    }

    /// Takes an idle connection on which nothing has arrived, neither bytes nor the end.
    pub(super) fn checkout(&self, now: Millis, config: &ProxyConfig) -> Option<Upstream<S>> {
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
    pub(super) fn checkin(&self, mut connection: Upstream<S>, now: Millis, config: &ProxyConfig) {
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
    /// It has no first token yet.
    is_waiting: Cell<bool>,
}

impl<S: Stream> InFlight<S> {
    /// Tells how the request ended at the engine; only the first word counts.
    pub(super) fn ended(&self, evidence: Evidence) {
        if !self.is_judged.replace(true) {
            self.engine.judged.take(evidence, self.timers.coarse(), self.is_test);
        }
    }

    /// The request has its first token: its place in front of the engine is free.
    pub(super) fn has_begun(&self) {
        if self.is_waiting.take() {
            self.engine.load.end_waiting();
            self.engine.offer_room();
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
        let engine = &self.engine;
        if self.is_waiting.get() {
            engine.load.end_waiting();
        }
        engine.load.leave();
        engine.counters.in_flight.subtract(1);
        engine.offer_room();
        if self.is_test && !self.is_judged.get() {
            self.engine.judged.test_lapsed(self.timers.coarse());
        }
    }
}
