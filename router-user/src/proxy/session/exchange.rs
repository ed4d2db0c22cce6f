//! One request and its engines: picks one after another until an answer begins that is not the
//! engine's fault.
//!
//! The commit point is the first byte of an answer's body that can be passed on, and in an event
//! stream the first content: until then nothing has gone to the client, and the request may go to
//! another engine. After it never. Whose fault a failure is, `faults` finds out.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use router_common::slot::slot_of;

use super::attempt::{Answer, Attempt, Failure, Others};
use super::body::BodyAt;
use super::client::{AfterExchange, Session};
use super::faults::{DEATHS_MAX, Faults};
use super::forward::Forward;
use super::opening::Unanswered;
use super::queue::Placed;
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
use crate::proxy::upstream::InFlight;
use crate::proxy::worker_routes::WorkerRoutes;
use crate::publish::routes::ClassRoute;
use crate::publish::slots::full_rank;

/// Where a request goes next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Engine(EngineId),
    /// To this engine, once it has room.
    Full(EngineId),
}

/// A request on its way through the engines.
struct Exchange<'a, 'w, S: Stream> {
    session: &'a mut Session<'w, S>,
    request: &'a Request,
    body: BodyAt,
    routes: &'a Rc<WorkerRoutes<S>>,
    /// Keeps the routes of a plan that has come while the request waited for a place.
    newer: &'a OnceCell<Rc<WorkerRoutes<S>>>,
    key: RoutingKey,
    affinity_key: u64,
    resend: &'a Resend<'a, S>,
    /// The engine keeps something of a request that has reached it, so it must not be sent twice.
    is_stateful: bool,
    tried: Vec<EngineId>,
    /// The request has waited for its place at the engine that is next, and has taken it.
    has_place: bool,
    /// The first attempt tests an engine that is ejected.
    is_test: bool,
    faults: Faults,
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
        let newer = OnceCell::new();
        let mut exchange = Exchange {
            session: &mut *self,
            request,
            body,
            routes,
            newer: &newer,
            key,
            affinity_key: key.affinity.unwrap_or_else(|| worker.random()),
            resend: &resend,
            is_stateful,
            tried: Vec::new(),
            has_place: false,
            is_test: false,
            faults: Faults::default(),
        };
        let next = exchange.run().await;
        if !self.is_served {
            resend.failed(self);
        }
        self.client.consume(resend.body.get().held);
        next
    }
}

impl<S: Stream> Exchange<'_, '_, S> {
    async fn run(&mut self) -> AfterExchange {
        let mut next = match self.first().await {
            Ok(engine) => Next::Engine(engine),
            Err(after) => return after,
        };
        self.resend.earn();
        loop {
            let engine = match next {
                Next::Engine(engine) => Ok(engine),
                Next::Full(engine) => self.wait_at(engine, true).await,
            };
            next = match engine {
                Ok(engine) => match self.send_to(engine).await {
                    Ok(next) => next,
                    Err(after) => return after,
                },
                Err(after) => return after,
            };
        }
    }

    /// Sends the request to an engine, and its answer to the client unless the engine has failed it
    /// and another one may do better.
    async fn send_to(&mut self, engine: EngineId) -> Result<Next, AfterExchange> {
        let Self { request, body, routes, key, resend, is_stateful, .. } = *self;
        let flight = routes.engine(engine).begin(&self.session.worker.timers, std::mem::take(&mut self.has_place));
        let _of_class = routes.begin(key.class, engine);
        routes.count_pick(key.class, engine);
        self.tried.push(engine);
        let (wait, may_move) = (self.wait(engine), self.may_move());
        let others = Others { routes, class: key.class, tried: &self.tried };
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
        match attempt.run().await {
            Ok(answer) => {
                if let Some(next) = self.next_after(&flight, &answer) {
                    self.discard(&flight, answer);
                    return Ok(next);
                }
                let mut forward = Forward::new(&mut *self.session, flight, request, resend, answer);
                Err(match forward.pass_on().await {
                    Ok(()) => forward.end_whole(),
                    Err(outcome) => forward.end_early(outcome).await,
                })
            }
            Err(Failure::ClientGone) => {
                self.session.worker.stats.count(Outcome::ClientGone);
                Err(AfterExchange::Close)
            }
            Err(failure) => match self.next_after_failure(&flight, failure) {
                Some(next) => Ok(next),
                None => {
                    let problem = self.problem(failure, &flight.engine.name);
                    Err(self.session.refuse(problem, Some(request), 0).await)
                }
            },
        }
    }

    fn next_after_failure(&mut self, flight: &InFlight<S>, failure: Failure) -> Option<Next> {
        if failure.is_death() {
            self.faults.died();
        }
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

    /// The engine that gets the request first. Waits for it while all are full.
    ///
    /// Errors: the request has been refused, or its client has left, and the connection goes on so.
    async fn first(&mut self) -> Result<EngineId, AfterExchange> {
        let request = self.request;
        let now = self.session.worker.timers.coarse();
        if let Some(problem) = self.routes.refusal(self.key, self.affinity_key, now) {
            return Err(self.session.refuse(problem, Some(request), 0).await);
        }
        if let Some(engine) = self.due_test() {
            self.is_test = true;
            return Ok(engine);
        }
        match self.pick() {
            Pick::Engine(engine) => Ok(engine),
            Pick::Full => {
                let home = || EngineId(self.route().table.ranks(slot_of(self.affinity_key))[0]);
                self.wait_at(self.key.holder.unwrap_or_else(home), self.key.holder.is_some()).await
            }
            Pick::None => Err(self.session.refuse(ErrorReply::engines_unavailable(0), Some(request), 0).await),
        }
    }

    /// Waits for a place: at `home` alone, if the request `is_bound` to it.
    ///
    /// Errors: as [`Self::first`].
    async fn wait_at(&mut self, home: EngineId, is_bound: bool) -> Result<EngineId, AfterExchange> {
        let Self { request, body, routes, key, .. } = *self;
        let Placed { engine, newer } = self.session.queue(request, body.held, routes, key, home, is_bound).await?;
        if let Some((routes, class)) = newer {
            self.routes = self.newer.get_or_init(|| routes);
            self.key.class = class;
        }
        self.has_place = true;
        Ok(engine)
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
            // One request more does no harm where all places are taken by requests that hang.
            engine.judged.is_ejected() && engine.judged.begin_test(now)
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
        self.routes.availability(self.key.class, engine, self.affinity_key)
    }

    /// Where the request goes after the last engine has failed it; `None` when it goes nowhere.
    /// Pays for the retry and counts it.
    fn next(&mut self, retry: Retry) -> Option<Next> {
        let next = self.candidate()?;
        // The answer at hand is as good as that of an engine which is ejected.
        let has_answer = matches!(retry, Retry::EngineError | Retry::Busy);
        if has_answer && matches!(next, Next::Engine(engine) if self.availability(engine) == Availability::Out) {
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
        can.then_some(next)
    }

    fn candidate(&self) -> Option<Next> {
        if self.faults.is_poison() || self.tried.len() >= self.session.worker.config.max_attempts {
            return None;
        }
        match self.pick() {
            Pick::Engine(engine) => Some(Next::Engine(engine)),
            Pick::Full => self.first_full().map(Next::Full),
            Pick::None => None,
        }
    }

    /// The first full engine of the key that has not had the request, if there is a queue.
    fn first_full(&self) -> Option<EngineId> {
        let is_left = |engine: &EngineId| !self.tried.contains(engine) && self.availability(*engine) == Availability::Full;
        let is_on = self.session.worker.plane.admission.is_on();
        full_rank(&self.route().candidates, slot_of(self.affinity_key)).into_iter().find(|engine| is_on && is_left(engine))
    }

    /// Judges the engine by the head of its answer. Returns where the request goes instead.
    fn next_after(&mut self, flight: &InFlight<S>, answer: &Answer<S>) -> Option<Next> {
        let response = answer.head.response;
        if let (true, Some(&engine)) = (self.key.is_demand, self.tried.last()) {
            self.routes.note_answer(self.key.class, engine, &self.session.worker.timers, answer.sent_at, &response);
        }
        flight.has_begun();
        let (evidence, retry) = match response.status {
            429 => (Evidence::Busy, Retry::Busy),
            503 if response.retry_after.is_some() => (Evidence::Busy, Retry::Busy),
            500.. => (Evidence::ServerError, Retry::EngineError),
            404 if self.is_missing_model() => (Evidence::ModelMissing, Retry::EngineError),
            status => {
                if status < 400 {
                    let now = self.session.worker.timers.coarse();
                    self.faults.confirm(|engine, evidence| self.routes.engine(engine).judged.take(evidence, now, false));
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

    fn note(&mut self, flight: &InFlight<S>, evidence: Evidence) {
        let (now, engine) = (self.session.worker.timers.coarse(), self.tried.last().copied());
        self.faults.note(flight, engine, evidence, |first, before| self.routes.engine(first).judged.take_back(before, now));
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
            _ if self.faults.is_poison() => ErrorReply::poison(DEATHS_MAX),
            Failure::Late => ErrorReply::ttft_timeout(engine),
            Failure::Unanswered(Unanswered::Malformed(error)) => ErrorReply::bad_response(engine, error),
            _ if self.key.holder.is_some() => ErrorReply::holder_unavailable(engine),
            _ => ErrorReply::engines_unavailable(self.tried.len()),
        }
    }
}
