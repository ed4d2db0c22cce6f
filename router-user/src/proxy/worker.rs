//! One worker: a thread with its own runtime, listeners, timers, connections and counters.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::bodies::BodyPool;
use super::plane::DataPlane;
use super::retries::Retries;
use super::stats::WorkerStats;
use super::timers::{TICK, Timers};
use super::worker_routes::WorkerRoutes;
use crate::config::ProxyConfig;
use crate::io::{Driver, Listener, Stream};
use crate::policy::Millis;
use crate::rng::Rng;
use crate::telemetry::limited;

/// Pause after an accept that failed because descriptors or memory ran out, which does not pass at
/// once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Ticks between two sweeps that close stale idle connections to engines: half a second, well below
/// `engine_idle_timeout`.
const SWEEP_TICKS: u32 = 20;
/// Ticks between two looks for engines that have fallen silent: a tenth of a second.
const SILENCE_TICKS: u32 = 4;

/// Connections of one worker beyond `max_connections`, on which only health is answered: more than
/// a few load balancers probe at one time.
const RESERVE: usize = 8;

/// The handle's order to stop: 0 while running, else the grace period in ms plus one.
pub(super) type Stop = AtomicU64;

/// Where a connection is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// One of `max_connections`.
    Regular,
    /// One of [`RESERVE`]: health is answered, anything else is refused.
    Reserve,
}

/// Serves one client connection to its end.
pub(super) trait Serve<S: Stream>: AsyncFn(&Rc<Worker<S>>, TcpStream, IpAddr, Place) + Copy + 'static {}
impl<S: Stream, F: AsyncFn(&Rc<Worker<S>>, TcpStream, IpAddr, Place) + Copy + 'static> Serve<S> for F {}

pub(super) struct Worker<S: Stream> {
    pub(super) config: Arc<ProxyConfig>,
    pub(super) plane: Arc<DataPlane>,
    pub(super) stats: Arc<WorkerStats>,
    pub(super) timers: Rc<Timers>,
    pub(super) retries: Retries,
    pub(super) is_stopping: Cell<bool>,
    routes: RefCell<Option<Rc<WorkerRoutes<S>>>>,
    connections: Cell<usize>,
    /// Connections in the reserve, which `connections` leaves out.
    in_reserve: Cell<usize>,
    pub(super) bodies: Rc<BodyPool>,
    vacancy: tokio::sync::Notify,
    rng: RefCell<Rng>,
    /// Of the judgements of engines, when this worker looked last.
    version: Cell<u64>,
}

impl<S: Stream> Worker<S> {
    /// The routes in use, with this worker's engines; `None` before the first snapshot.
    pub(super) fn routes(&self) -> Option<Rc<WorkerRoutes<S>>> {
        let published = self.plane.routes.load();
        let published = published.as_ref()?;
        let mut routes = self.routes.borrow_mut();
        match routes.as_ref() {
            Some(known) if Arc::ptr_eq(&known.routes, published) => {}
            before => {
                let new = WorkerRoutes::build(
                    Arc::clone(published),
                    &self.plane,
                    &self.stats,
                    self.config.load_factor,
                    before.map(Rc::as_ref),
                );
                *routes = Some(Rc::new(new));
            }
        }
        routes.clone()
    }

    fn is_empty(&self) -> bool {
        self.connections.get() + self.in_reserve.get() == 0
    }

    /// Connections at a kind of place.
    fn taken(&self, place: Place) -> &Cell<usize> {
        match place {
            Place::Regular => &self.connections,
            Place::Reserve => &self.in_reserve,
        }
    }

    /// Finds engines that leave requests waiting, and wakes those.
    fn look_for_silence(&self, now: Millis) {
        let Some(routes) = self.routes.borrow().clone() else { return };
        // No two workers have the same counters.
        let worker = Arc::as_ptr(&self.stats) as usize;
        let mut found = false;
        for engine in routes.engines() {
            found |= engine.is_silent_now(worker, now);
        }
        // An engine that another worker found, too.
        let version = self.plane.outliers.version();
        if self.version.replace(version) != version || found {
            self.timers.wake_all();
        }
    }

    /// A random number, to spread requests and to make ids. Not for secrets.
    pub(super) fn random(&self) -> u64 {
        self.rng.borrow_mut().next_u64()
    }

    pub(super) fn request_id(&self, out: &mut Vec<u8>) {
        for _ in 0..2 {
            let random = self.random();
            out.extend((0..16).map(|place| b"0123456789abcdef"[(random >> (4 * place)) as usize & 15]));
        }
    }
}

/// Runs a worker until it is told to stop, and then until its requests are done or the grace period
/// ends.
pub(super) fn run<D: Driver>(
    driver: D,
    mut rng: Rng,
    config: Arc<ProxyConfig>,
    plane: Arc<DataPlane>,
    listeners: Vec<TcpListener>,
    stop: &Stop,
    serve: impl Serve<D::Stream>,
) -> io::Result<()> {
    driver.run(async move {
        plane.admission.join(config.max_waiting, config.max_in_flight_per_engine);
        let timers = Rc::new(Timers::new(plane.clock));
        let worker = Rc::new(Worker::<D::Stream> {
            version: Cell::new(plane.outliers.version()),
            stats: plane.join(),
            retries: Retries::new(&plane.retries, rng.next_u64()),
            timers,
            plane,
            is_stopping: Cell::new(false),
            routes: RefCell::default(),
            connections: Cell::new(0),
            in_reserve: Cell::new(0),
            bodies: Rc::new(BodyPool::new(config.max_bodies_bytes)),
            vacancy: tokio::sync::Notify::new(),
            rng: RefCell::new(rng),
            config,
        });
        for socket in listeners {
            let listener = D::Listener::adopt(socket)?;
            tokio::task::spawn_local(accept::<D>(Rc::clone(&worker), listener, serve));
        }
        watch(&worker, stop).await;
        Ok(())
    })?
}

/// Fires deadlines, sweeps idle connections, and returns when the worker has to end.
async fn watch<S: Stream>(worker: &Rc<Worker<S>>, stop: &Stop) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut ticks = 0u32;
    let mut end = None;
    loop {
        tick.tick().await;
        ticks = ticks.wrapping_add(1);
        worker.timers.look();
        // New routes are built here, so that rarely a request has to wait for them.
        let routes = worker.routes();
        let now = worker.timers.coarse();
        worker.retries.settle(now);
        worker.plane.outliers.look(now);
        if let Some(routes) = routes {
            routes.look();
            routes.offer_room();
        }
        if ticks.is_multiple_of(SILENCE_TICKS) {
            worker.look_for_silence(now);
        }
        if ticks.is_multiple_of(SWEEP_TICKS) {
            let routes = worker.routes.borrow().clone();
            routes.iter().flat_map(|r| r.engines()).for_each(|engine| engine.sweep(now, &worker.config));
        }
        let asked = stop.load(Ordering::Acquire);
        if asked > 0 && end.is_none() {
            worker.is_stopping.set(true);
            worker.timers.wake_all();
            end = Some(now.saturating_add(asked - 1));
        }
        if end.is_some_and(|end| worker.is_empty() || now >= end) {
            return;
        }
    }
}

/// Waits until one more connection may open, and tells at which place. The longest idle connection
/// is closed for it; while none is idle, the reserve takes it.
async fn vacancy<S: Stream>(worker: &Worker<S>) -> Place {
    let mut has_yielded = false;
    loop {
        if worker.connections.get() < worker.config.max_connections {
            return Place::Regular;
        }
        if !worker.timers.expire_longest_idle() {
            if !std::mem::replace(&mut has_yielded, true) {
                // Connections that were just accepted become idle only now.
                tokio::task::yield_now().await;
                continue;
            }
            if worker.in_reserve.get() < RESERVE {
                return Place::Reserve;
            }
        }
        let vacancy = worker.vacancy.notified();
        // The chosen connection may have received a request in that moment, so this looks again
        // soon.
        let _next_look = tokio::time::timeout(TICK, vacancy).await;
    }
}

async fn accept<D: Driver>(worker: Rc<Worker<D::Stream>>, mut listener: D::Listener, serve: impl Serve<D::Stream>) {
    loop {
        match poll_fn(|cx| listener.poll_accept(cx)).await {
            Ok((socket, address)) => {
                let place = vacancy(&worker).await;
                let open = Open::new(Rc::clone(&worker), place);
                tokio::task::spawn_local(async move {
                    serve(&open.worker, socket, address.ip(), open.place).await;
                });
            }
            // The listener has been shut down.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ECONNABORTED | libc::EPROTO | libc::EINTR)) => {}
            Err(e) => {
                limited!(warn, error = %e, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Counts an open connection.
struct Open<S: Stream> {
    worker: Rc<Worker<S>>,
    place: Place,
}

impl<S: Stream> Open<S> {
    fn new(worker: Rc<Worker<S>>, place: Place) -> Self {
        worker.taken(place).update(|taken| taken + 1);
        worker.stats.connections.add(1);
        Self { worker, place }
    }
}

impl<S: Stream> Drop for Open<S> {
    fn drop(&mut self) {
        self.worker.taken(self.place).update(|taken| taken - 1);
        self.worker.stats.connections.subtract(1);
        self.worker.vacancy.notify_waiters();
    }
}
