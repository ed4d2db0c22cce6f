//! One request and its engines: picks one after another until an answer begins that is not the
//! engine's fault.
//!
//! The commit point is the first byte of an answer's body that can be passed on, and in an event
//! stream the first content: until then nothing has gone to the client, and the request may go to
//! another engine. After it never.
//!
//! Whose fault a failure is shows in what the next engine does. When it serves the request, the
//! first one was at fault. When it fails too, the request is the likelier reason, and counts
//! against neither; when two engines ended the connection, no third one gets the request.

use std::cell::Cell;
use std::rc::Rc;

use router_common::slot::slot_of;

use super::attempt::{Answer, Attempt, Failure, Others};
use super::body::BodyAt;
use super::client::{AfterExchange, Session};
use super::forward::Forward;
use super::opening::Unanswered;
use super::resend::Resend;
use crate::io::Stream;
use crate::model::EngineId;
use crate::policy::Millis;
use crate::policy::outlier::Evidence;
use crate::policy::pick::{Availability, Pick, pick};
use crate::policy::silence::Wait;
use crate::proxy::http1::request::{Method, Request};
use crate::proxy::http1::target::decoded_path;
use crate::proxy::reply::ErrorReply;
use crate::proxy::route::{self, RoutingKey};
use crate::proxy::stats::{Outcome, Retry};
use crate::proxy::upstream::{InFlight, WorkerRoutes};
use crate::publish::routes::ClassRoute;
use crate::publish::slots::full_rank;

/// Engines that one request may take down with it: with one it may be chance.
const DEATHS_MAX: usize = 2;

/// A request on its way through the engines.
struct Exchange<'a, 'w, S: Stream> {
    session: &'a mut Session<'w, S>,
    request: &'a Request,
    body: BodyAt,
    routes: &'a Rc<WorkerRoutes<S>>,
    key: RoutingKey,
    affinity_key: u64,
    resend: &'a Resend<'a, S>,
    /// The engine keeps something of a request that has reached it, so it must not be sent twice.
    is_stateful: bool,
    tried: Vec<EngineId>,
    /// The first attempt tests an engine that is ejected.
    is_test: bool,
    /// Failures that may be the request's fault.
    faults: Vec<(EngineId, Evidence)>,
    /// Engines that ended the connection with this request.
    deaths: usize,
}

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
        let worker = self.worker;
        let resend = Resend::new(self, request, body, routes, key.class);
        self.is_served = false;
        let mut exchange = Exchange {
            session: &mut *self,
            request,
            body,
            routes,
            key,
            affinity_key: key.affinity.unwrap_or_else(|| worker.random()),
            resend: &resend,
            is_stateful,
            tried: Vec::new(),
            is_test: false,
            faults: Vec::new(),
            deaths: 0,
        };
        let next = exchange.run().await;
        if !self.is_served {
            resend.failed();
        }
        next
    }
}

impl<S: Stream> Exchange<'_, '_, S> {
    async fn run(&mut self) -> AfterExchange {
        let Self { request, body, routes, key, resend, is_stateful, .. } = *self;
        let in_flight_max = self.session.worker.config.max_in_flight_per_engine;
        let mut engine = match self.first() {
            Ok(engine) => engine,
            Err(problem) => return self.session.refuse(problem, Some(request), body.held).await,
        };
        resend.earn();
        loop {
            let flight = self.routes.engine(engine).begin(&self.session.worker.timers);
            let _of_class = self.routes.begin(self.key.class, engine);
            self.routes.count_pick(self.key.class, engine);
            self.tried.push(engine);
            let (wait, may_move) = (self.wait(engine), self.may_move());
            let others = Others { routes, class: key.class, tried: &self.tried, in_flight_max };
            let attempt = Attempt {
                session: &mut *self.session,
                flight: &flight,
                request,
                body,
                is_stateful,
                resend,
                wait,
                is_test: self.is_test && self.tried.len() == 1,
                others: may_move.then_some(others),
            };
            let failure = match attempt.run().await {
                Ok(answer) => match self.next_after(&flight, &answer) {
                    Some(next) => {
                        self.discard(&flight, answer);
                        engine = next;
                        continue;
                    }
                    None => {
                        let mut forward = Forward::new(&mut *self.session, flight, request, body, answer);
                        return match forward.pass_on().await {
                            Ok(()) => forward.end_whole(),
                            Err(outcome) => forward.end_early(outcome).await,
                        };
                    }
                },
                Err(Failure::ClientGone) => {
                    self.session.worker.stats.count(Outcome::ClientGone);
                    return AfterExchange::Close;
                }
                Err(failure) => failure,
            };
            match self.next_after_failure(&flight, failure) {
                Some(next) => engine = next,
                None => {
                    let problem = self.problem(failure, &flight.engine.name);
                    return self.session.refuse(problem, Some(request), body.held).await;
                }
            }
        }
    }

    fn next_after_failure(&mut self, flight: &InFlight<S>, failure: Failure) -> Option<EngineId> {
        self.deaths += usize::from(failure.is_death());
        if let Some(evidence) = failure.evidence() {
            self.note(flight, evidence);
        }
        if failure == Failure::Moved {
            flight.engine.counters.failed(Evidence::Stalled);
            return self.candidate();
        }
        self.next(failure.retry()?)
    }

    fn wait(&self, engine: EngineId) -> Wait {
        let RoutingKey { class, is_stream, .. } = self.key;
        Wait { since: 0, usual_ms: self.routes.usual_ms(class, engine, is_stream), is_stream, bytes: self.resend.bytes }
    }

    /// Whether the request may go to another engine after it has been sent to one.
    fn may_move(&self) -> bool {
        let has_left = self.tried.len() < self.session.worker.config.max_attempts;
        has_left && !self.is_stateful && self.key.holder.is_none()
    }

    fn route(&self) -> &ClassRoute {
        &self.routes.routes.classes[self.key.class.index()]
    }

    /// The engine that gets the request first.
    fn first(&mut self) -> Result<EngineId, ErrorReply> {
        let route = self.route();
        if route.candidates.is_empty() {
            return Err(route::no_eligible_engine(self.key.class, &self.routes.routes));
        }
        let now = self.session.worker.timers.coarse();
        if self.key.is_demand && self.routes.is_shed(self.key.class, self.affinity_key, now) {
            return Err(ErrorReply::shed_planned());
        }
        if let Some(engine) = self.due_test() {
            self.is_test = true;
            return Ok(engine);
        }
        match self.pick() {
            Pick::Engine(engine) => Ok(engine),
            Pick::Full => Err(self
                .key
                .holder
                .map_or_else(ErrorReply::engines_full, |holder| ErrorReply::holder_full(&self.routes.engine(holder).name))),
            Pick::None => Err(ErrorReply::engines_unavailable(0)),
        }
    }

    /// An ejected engine whose test is due, if this request can be sent elsewhere when it fails.
    fn due_test(&self) -> Option<EngineId> {
        let worker = self.session.worker;
        let now = worker.timers.coarse();
        let may_move = !self.is_stateful && self.key.holder.is_none() && worker.config.max_attempts > 1;
        if !worker.plane.outliers.has_test_due(now) || !may_move {
            return None;
        }
        let candidates = &self.route().candidates;
        if candidates.len() < 2 {
            return None;
        }
        candidates.iter().map(|candidate| candidate.engine).find(|&id| {
            let engine = self.routes.engine(id);
            engine.judged.is_ejected() && !engine.is_full(worker.config.max_in_flight_per_engine) && engine.judged.begin_test(now)
        })
    }

    fn pick(&self) -> Pick {
        let (route, slot) = (self.route(), slot_of(self.affinity_key));
        let (holder, loaded) = (self.key.holder, Cell::new(None));
        let choice = pick(
            if holder.is_none() { route.table.ranks(slot) } else { &[] },
            || holder.map_or_else(|| full_rank(&route.candidates, slot), |holder| vec![holder]),
            &self.tried,
            |engine| {
                let availability = self.availability(engine);
                if availability == Availability::Loaded {
                    loaded.set(loaded.get().or(Some(engine)));
                }
                availability
            },
        );
        if let (Pick::Engine(engine), Some(loaded)) = (choice, loaded.get())
            && loaded != engine
        {
            self.routes.count_spill(self.key.class);
        }
        choice
    }

    fn availability(&self, engine: EngineId) -> Availability {
        let in_flight_max = self.session.worker.config.max_in_flight_per_engine;
        self.routes.availability(self.key.class, engine, self.affinity_key, in_flight_max)
    }

    /// The engine that gets the request after the last one has failed it; `None` when there is none
    /// or it must not. Pays for the retry and counts it.
    fn next(&mut self, retry: Retry) -> Option<EngineId> {
        let engine = self.candidate()?;
        // The answer at hand is as good as that of an engine which is ejected.
        let has_answer = matches!(retry, Retry::EngineError | Retry::Busy);
        if has_answer && self.availability(engine) == Availability::Out {
            return None;
        }
        let can = match retry {
            // A refused connection costs nobody anything; a request that was sent may have been
            // worked on.
            Retry::ConnectFailed => self.resend.is_free(retry),
            _ if self.is_stateful => self.resend.is_denied(),
            // No client pays for a test. There is one per engine and second at most.
            _ if self.is_test && self.tried.len() == 1 => self.resend.is_free(retry),
            _ => self.resend.is_paid(retry),
        };
        can.then_some(engine)
    }

    fn candidate(&self) -> Option<EngineId> {
        if self.deaths >= DEATHS_MAX || self.tried.len() >= self.session.worker.config.max_attempts {
            return None;
        }
        match self.pick() {
            Pick::Engine(engine) => Some(engine),
            Pick::Full | Pick::None => None,
        }
    }

    /// Judges the engine by the head of its answer. Returns the engine that is to answer instead.
    fn next_after(&mut self, flight: &InFlight<S>, answer: &Answer<S>) -> Option<EngineId> {
        let response = answer.head.response;
        if let (true, Some(&engine)) = (self.key.is_demand, self.tried.last()) {
            self.routes.note_answer(self.key.class, engine, &self.session.worker.timers, answer.sent_at, &response);
        }
        let (evidence, retry) = match response.status {
            429 => (Evidence::Busy, Retry::Busy),
            503 if response.retry_after.is_some() => (Evidence::Busy, Retry::Busy),
            500.. => (Evidence::ServerError, Retry::EngineError),
            404 if self.is_missing_model() => (Evidence::ModelMissing, Retry::EngineError),
            status => {
                if status < 400 {
                    self.confirm();
                }
                return None;
            }
        };
        let timers = &self.session.worker.timers;
        match response.retry_after.map(|asked| asked.seconds(|| timers.unix_s())) {
            Some(seconds @ 1..) => {
                flight.engine.counters.failed(evidence);
                flight.rests(Millis::from(seconds) * 1000);
            }
            _ => self.note(flight, evidence),
        }
        self.next(retry)
    }

    fn is_missing_model(&self) -> bool {
        let target = std::str::from_utf8(&self.session.wire[self.request.target.clone()]).unwrap_or_default();
        self.request.method == Method::Post && route::is_missing_model(&decoded_path(target))
    }

    /// Counts a failure against its engine. The second failure of a request is the likelier its
    /// own, so the first is taken back.
    fn note(&mut self, flight: &InFlight<S>, evidence: Evidence) {
        flight.engine.counters.failed(evidence);
        if matches!(evidence, Evidence::Refused | Evidence::Unreachable) {
            // No request can be the reason for that.
            return flight.ended(evidence);
        }
        let now = self.session.worker.timers.coarse();
        match self.faults[..] {
            [] => flight.ended(evidence),
            [(first, before)] => self.routes.engine(first).judged.take_back(before, now),
            _ => {}
        }
        self.faults.extend(self.tried.last().map(|&engine| (engine, evidence)));
    }

    /// The request is served, so the engines that failed it were at fault.
    fn confirm(&self) {
        let now = self.session.worker.timers.coarse();
        if self.faults.len() > 1 {
            self.faults.iter().for_each(|&(engine, evidence)| self.routes.engine(engine).judged.take(evidence, now, false));
        }
    }

    /// Ends an answer of which the client gets nothing. A whole one leaves its connection usable.
    fn discard(&self, flight: &InFlight<S>, answer: Answer<S>) {
        let Answer { mut upstream, head, step, upload, is_end, .. } = answer;
        let worker = self.session.worker;
        flight.engine.counters.answered(head.response.status);
        upstream.consume(step.consumed);
        if step.is_done && head.response.keep_alive && upload.is_whole() && !is_end {
            flight.engine.checkin(upstream, worker.timers.coarse(), &worker.config);
        }
    }

    /// The answer to a request whose last attempt failed and that goes to no other engine.
    fn problem(&self, failure: Failure, engine: &str) -> ErrorReply {
        match failure {
            _ if self.deaths >= DEATHS_MAX => ErrorReply::poison(self.deaths),
            Failure::Late => ErrorReply::ttft_timeout(engine),
            Failure::Unanswered(Unanswered::Malformed(error)) => ErrorReply::bad_response(engine, error),
            _ if self.key.holder.is_some() => ErrorReply::holder_unavailable(engine),
            _ => ErrorReply::engines_unavailable(self.tried.len()),
        }
    }
}
