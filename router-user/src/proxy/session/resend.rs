//! Sending a request again: by us, which the retry budget pays for, or by its client.

use std::cell::{Cell, OnceCell};

use super::body::BodyAt;
use super::client::Session;
use crate::io::Stream;
use crate::model::ClassId;
use crate::policy::budget::expected_work;
use crate::proxy::http1::request::Request;
use crate::proxy::stats::Retry;
use crate::proxy::worker::Worker;
use crate::proxy::worker_routes::WorkerRoutes;

/// What one request earns, and what it costs to send it again.
pub(super) struct Resend<'a, S: Stream> {
    worker: &'a Worker<S>,
    routes: &'a WorkerRoutes<S>,
    request: &'a Request,
    class: ClassId,
    /// Where the body lies, until it is let go.
    pub(super) body: Cell<BodyAt>,
    /// Of the body.
    pub(super) bytes: usize,
    /// Expected work, in prompt tokens.
    work: f64,
    /// Known once somebody has asked, which is before the body is gone.
    digest: OnceCell<u64>,
    /// Its client has sent it before.
    is_repeat: bool,
}

impl<'a, S: Stream> Resend<'a, S> {
    pub(super) fn new(
        session: &Session<'a, S>,
        request: &'a Request,
        body: BodyAt,
        routes: &'a WorkerRoutes<S>,
        class: ClassId,
    ) -> Self {
        let worker = &**session.worker;
        let bytes = body.bytes(&session.client, &session.body).len();
        let work = expected_work(bytes, routes.routes.snapshot.classes[class.index()].output_tokens);
        let (is_repeat, digest) = (request.is_repeated, OnceCell::new());
        let body = Cell::new(body);
        let mut resend = Self { worker, routes, request, class, body, bytes, work, digest, is_repeat };
        let now = worker.timers.coarse();
        resend.is_repeat |= worker.retries.remembers(now) && worker.retries.take(resend.digest(session), now);
        if resend.is_repeat {
            worker.stats.client_retries.add(1);
        }
        resend
    }

    /// Frees the body: the request is not sent again.
    pub(super) fn let_body_go(&self, session: &mut Session<'_, S>) {
        // Its client may send it again.
        self.digest(session);
        session.let_body_go(self.body.replace(BodyAt::NONE));
    }

    /// By which the request is known when it comes back.
    fn digest(&self, session: &Session<'_, S>) -> u64 {
        *self.digest.get_or_init(|| {
            let target = &session.wire[self.request.target.clone()];
            match self.request.idempotency_key {
                Some(key) => self.worker.retries.digest(&[target, &key.to_le_bytes()]),
                None => {
                    let bytes = self.body.get().bytes(&session.client, &session.body);
                    self.worker.retries.digest(&[target, session.client_ip.as_bytes(), bytes])
                }
            }
        })
    }

    /// Adds the credit of a request that goes to its first engine.
    pub(super) fn earn(&self) {
        if !self.is_repeat {
            self.worker.retries.earn(self.work);
        }
    }

    /// Takes the price of sending the request again, and counts that it is; or counts that the
    /// budget did not allow it.
    pub(super) fn is_paid(&self, retry: Retry) -> bool {
        let Self { worker, routes, class, .. } = *self;
        let now = worker.timers.coarse();
        let utilisation = routes.utilisation(class, worker.config.max_in_flight_per_engine * worker.plane.workers());
        let can = worker.retries.spend(now, self.work, utilisation);
        if can {
            worker.stats.retried(retry);
        } else {
            worker.stats.retry_denied();
        }
        can
    }

    /// Counts that the request is sent again for nothing.
    pub(super) fn is_free(&self, retry: Retry) -> bool {
        self.worker.stats.retried(retry);
        true
    }

    /// Counts that the request may not be sent again.
    pub(super) fn is_denied(&self) -> bool {
        self.worker.stats.retry_denied();
        false
    }

    /// Remembers that the request was not served, for the case that its client sends it again.
    pub(super) fn failed(&self, session: &Session<'_, S>) {
        self.worker.retries.failed(self.digest(session), self.worker.timers.coarse());
    }
}
