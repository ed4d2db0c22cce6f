//! The wait of a request for which no engine has room.

use std::rc::Rc;
use std::time::Duration;

use super::client::{AfterExchange, Session};
use super::interrupt::{Interrupted, until};
use crate::io::Stream;
use crate::model::{ClassId, EngineId};
use crate::policy::admission::{Place, Refusal, Waiter};
use crate::policy::affinity::{self, Source};
use crate::proxy::engine_load::expected_ttft_ms;
use crate::proxy::http1::request::Request;
use crate::proxy::reply::ErrorReply;
use crate::proxy::route::RoutingKey;
use crate::proxy::stats::Outcome;
use crate::proxy::worker_routes::WorkerRoutes;

/// Bytes of a body that are as much work as a request by itself: some thousand tokens.
const WORK_BYTES: f64 = 4096.0;
/// Part of the time to the first token that a client waits at least where the engine's own part
/// leaves nothing: an expectation is a mean, and may be wrong.
const PATIENCE_MIN: f64 = 0.1;
/// Shortest and longest time, in s, after which a refused client is asked to come back.
const RETRY_MIN_S: f64 = 1.0;
const RETRY_MAX_S: f64 = 60.0;

/// A place that a request has at an engine.
pub(super) struct Placed<S: Stream> {
    pub(super) engine: EngineId,
    /// The routes that the engine is one of, and the request's class there, where a plan has come
    /// while it waited.
    pub(super) newer: Option<(Rc<WorkerRoutes<S>>, ClassId)>,
}

impl<S: Stream> Session<'_, S> {
    /// Waits until an engine has room for the request, and takes a place there. `home` is the
    /// engine that it is tied to, and the only one that will do if it `is_bound`.
    ///
    /// Errors: the request has been refused, or its client has left, and the connection goes on so.
    pub(super) async fn queue(
        &mut self,
        request: &Request,
        held: usize,
        routes: &Rc<WorkerRoutes<S>>,
        key: RoutingKey,
        home: EngineId,
        is_bound: bool,
    ) -> Result<Placed<S>, AfterExchange> {
        let worker = self.worker;
        let admission = &worker.plane.admission;
        if !admission.is_on() {
            let full = |holder| ErrorReply::holder_full(&routes.engine(holder).name);
            return Err(self.refuse(key.holder.map_or_else(ErrorReply::engines_full, full), Some(request), 0).await);
        }
        let level = routes.level(key.class);
        let waiter = Waiter {
            level,
            class: routes.class_key(key.class),
            share: routes.share(key.class),
            user: key.user.unwrap_or_else(|| affinity::key(Source::Address, self.client_ip.as_bytes())),
            work: 1.0 + held as f64 / WORK_BYTES,
            home: routes.engine(home).load.place,
            is_bound,
        };
        let patience_ms = patience_ms(request.timeout_ms, routes, key.class, home);
        let ticket = match routes.wait(key.class, waiter, patience_ms) {
            Ok(ticket) => ticket,
            Err((refusal, drain_ms)) => {
                let problem = self.no_place(refusal, level, drain_ms);
                return Err(self.refuse(problem, Some(request), 0).await);
            }
        };
        let begun = worker.timers.elapsed();
        self.deadline.set(ticket.patience);
        let Self { client, deadline, .. } = &mut *self;
        let waited = until(client, deadline, held, |cx, _| ticket.poll(cx)).await;
        let refusal = match waited {
            Ok(Ok(load)) => {
                worker.stats.queue.waits.observe(worker.timers.elapsed() - begun);
                let Some(placed) = self.locate(routes, key.class, load.place, is_bound) else {
                    load.give_up();
                    return Err(self.refuse(ErrorReply::engines_unavailable(0), Some(request), 0).await);
                };
                return Ok(placed);
            }
            Ok(Err(refusal)) => refusal,
            Err(Interrupted::Late) => Refusal::Deadline,
            Err(Interrupted::ClientGone) => {
                worker.stats.count(Outcome::ClientGone);
                return Err(AfterExchange::Close);
            }
        };
        drop(ticket);
        let problem = self.no_place(refusal, level, admission.drain_ms());
        Err(self.refuse(problem, Some(request), 0).await)
    }

    /// Finds the engine of a place, in the routes in use or in those that the request began with;
    /// `None` when yet another plan has taken it away.
    fn locate(&self, routes: &Rc<WorkerRoutes<S>>, class: ClassId, place: Place, is_bound: bool) -> Option<Placed<S>> {
        let newer = self.worker.routes().filter(|newer| !is_bound && !Rc::ptr_eq(newer, routes)).and_then(|newer| {
            let (class, engine) = (newer.class_of(routes.class_key(class))?, newer.engine_at(place)?);
            Some(Placed { engine, newer: Some((newer, class)) })
        });
        newer.or_else(|| Some(Placed { engine: routes.engine_at(place)?, newer: None }))
    }

    fn no_place(&self, refusal: Refusal, level: usize, drain_ms: f64) -> ErrorReply {
        self.worker.stats.queue.refused(refusal, level);
        // Spread, so that those who were refused together do not come back together.
        let spread = 0.5 + (self.worker.random() >> 11) as f64 / (1u64 << 53) as f64;
        let retry_s = (spread * drain_ms / 1e3).clamp(RETRY_MIN_S, RETRY_MAX_S);
        ErrorReply::no_place(refusal, Duration::from_secs_f64(retry_s))
    }
}

/// Time, in ms, that a request may wait: what the client allows until the first token, less what an
/// engine then takes.
fn patience_ms<S: Stream>(timeout_ms: Option<u64>, routes: &WorkerRoutes<S>, class: ClassId, engine: EngineId) -> f64 {
    let snapshot = &routes.routes.snapshot;
    let budget_ms = snapshot.classes[class.index()].ttft_budget_ms;
    let budget_ms = timeout_ms.map_or(budget_ms, |timeout_ms| budget_ms.min(timeout_ms as f64));
    (budget_ms - expected_ttft_ms(&snapshot.engines[engine.index()])).max(PATIENCE_MIN * budget_ms)
}
