//! One request and its engines: picks one after another until an answer begins.
//!
//! The commit point is the first byte of an answer's body that can be passed on, and in an event
//! stream the first content: until then nothing has gone to the client, and the request may go to
//! another engine. After it never.

use std::rc::Rc;

use router_common::slot::slot_of;

use super::attempt::{Attempt, Failure};
use super::body::BodyAt;
use super::client::{AfterExchange, Session};
use super::forward::Forward;
use super::opening::Unanswered;
use super::resend::Resend;
use crate::io::Stream;
use crate::model::EngineId;
use crate::policy::pick::{Pick, pick};
use crate::proxy::http1::request::Request;
use crate::proxy::reply::ErrorReply;
use crate::proxy::route::{self, RoutingKey};
use crate::proxy::stats::{Outcome, Retry};
use crate::proxy::upstream::WorkerRoutes;
use crate::publish::slots::full_rank;

impl<S: Stream> Session<'_, S> {
    /// Sends the request in `wire` to an engine and its answer to the client, and remembers it when
    /// it was not served.
    pub(super) async fn exchange(
        &mut self,
        request: &Request,
        body: BodyAt,
        routes: &Rc<WorkerRoutes<S>>,
        key: RoutingKey,
        is_stateful: bool,
    ) -> AfterExchange {
        // Refused requests are demand too; but a request that comes back because it was refused
        // would be counted twice.
        if key.is_demand && !request.is_repeated {
            routes.count_arrival(key.class);
        }
        let resend = Resend::new(self, request, body, routes, key.class);
        self.is_served = false;
        let next = self.deliver(request, body, routes, key, &resend, is_stateful).await;
        if !self.is_served {
            resend.failed();
        }
        next
    }

    async fn deliver(
        &mut self,
        request: &Request,
        body: BodyAt,
        routes: &Rc<WorkerRoutes<S>>,
        key: RoutingKey,
        resend: &Resend<'_, S>,
        is_stateful: bool,
    ) -> AfterExchange {
        let worker = self.worker;
        let config = &worker.config;
        let route = &routes.routes.classes[key.class.index()];
        let affinity_key = key.affinity.unwrap_or_else(|| worker.random());
        let slot = slot_of(affinity_key);
        if route.candidates.is_empty() {
            let problem = route::no_eligible_engine(key.class, &routes.routes);
            return self.refuse(problem, Some(request), body.held).await;
        }
        if key.is_demand && routes.is_shed(key.class, affinity_key, worker.timers.coarse(), config.max_in_flight_per_engine) {
            return self.refuse(ErrorReply::shed_planned(), Some(request), body.held).await;
        }
        let mut tried: Vec<EngineId> = Vec::new();
        let mut failure = None;
        loop {
            let now = worker.timers.coarse();
            let choice = pick(
                if key.holder.is_none() { route.table.ranks(slot) } else { &[] },
                || key.holder.map_or_else(|| full_rank(&route.candidates, slot), |holder| vec![holder]),
                &tried,
                |engine| routes.engine(engine).availability(now, config.max_in_flight_per_engine),
            );
            let id = match choice {
                Pick::Engine(engine) if tried.len() < config.max_attempts.max(1) && may_retry(failure, is_stateful, resend) => {
                    engine
                }
                Pick::Full if tried.is_empty() => return self.refuse(full(key, routes), Some(request), body.held).await,
                _ => return self.refuse(exhausted(failure, &tried, key, routes), Some(request), body.held).await,
            };
            let engine = routes.engine(id);
            let _in_flight = engine.begin(now);
            routes.count_pick(key.class, id);
            if tried.is_empty() {
                resend.earn();
            }
            let attempt = Attempt { session: self, engine, request, body, is_stateful, resend };
            tried.push(id);
            match attempt.run().await {
                Ok(answer) => {
                    if key.is_demand {
                        routes.note_answer(key.class, id, &worker.timers, answer.sent_at, &answer.head.response);
                    }
                    let mut forward = Forward::new(self, engine, request, body, answer);
                    return match forward.pass_on().await {
                        Ok(()) => forward.end_whole(),
                        Err(outcome) => forward.end_early(outcome).await,
                    };
                }
                Err(Failure::ClientGone) => {
                    worker.stats.count(Outcome::ClientGone);
                    return AfterExchange::Close;
                }
                Err(Failure::Late) => return self.refuse(ErrorReply::ttft_timeout(&engine.name), Some(request), body.held).await,
                Err(Failure::Denied) => return self.refuse(exhausted(None, &tried, key, routes), Some(request), body.held).await,
                Err(other) => failure = Some(other),
            }
        }
    }
}

/// Whether the request may go to one more engine after `failure` at the last one. Pays for the
/// retry and counts it.
fn may_retry<S: Stream>(failure: Option<Failure>, is_stateful: bool, resend: &Resend<'_, S>) -> bool {
    let retry = match failure {
        None => return true,
        Some(Failure::Unreachable) => Retry::ConnectFailed,
        Some(Failure::Unanswered(Unanswered::Malformed(_))) => Retry::BadResponse,
        Some(_) => Retry::Reset,
    };
    match retry {
        // A refused connection costs nobody anything; a request that was sent may have been worked
        // on.
        Retry::ConnectFailed => resend.is_free(retry),
        _ if is_stateful => resend.is_denied(),
        _ => resend.is_paid(retry),
    }
}

/// The refusal of a request for which every engine is full.
fn full<S: Stream>(key: RoutingKey, routes: &WorkerRoutes<S>) -> ErrorReply {
    key.holder.map_or_else(ErrorReply::engines_full, |holder| ErrorReply::holder_full(&routes.engine(holder).name))
}

/// The refusal of a request that has no engine left.
fn exhausted<S: Stream>(failure: Option<Failure>, tried: &[EngineId], key: RoutingKey, routes: &WorkerRoutes<S>) -> ErrorReply {
    match (failure, tried.last(), key.holder) {
        (Some(Failure::Unanswered(Unanswered::Malformed(error))), Some(&last), _) => {
            ErrorReply::bad_response(&routes.engine(last).name, error)
        }
        (_, _, Some(holder)) => ErrorReply::holder_unavailable(&routes.engine(holder).name),
        _ => ErrorReply::engines_unavailable(tried.len()),
    }
}
