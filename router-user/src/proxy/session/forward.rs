//! Passes an answer on to the client, from its first bytes to its last.

use std::time::Duration;

use super::attempt::{Answer, Upload};
use super::body::JOIN_MAX;
use super::client::{AfterExchange, Session};
use super::forwarder::{BodyForwarder, Broken, Step};
use super::interrupt::{Interrupted, until};
use super::reader_watch::ReaderWatch;
use super::resend::Resend;
use super::stored;
use crate::io::Stream;
use crate::policy::outlier::Evidence;
use crate::proxy::histogram::EventGaps;
use crate::proxy::http1::events::EventCounter;
use crate::proxy::http1::request::Request;
use crate::proxy::http1::response::Response;
use crate::proxy::reply::error_event;
use crate::proxy::stats::Outcome;
use crate::proxy::stored::Form;
use crate::proxy::upstream::{InFlight, Upstream};

/// Time after which a stream that still runs brings its engine back as a whole answer does: it may
/// go on for minutes, and streams that break off do so early.
const PROVEN_AFTER: Duration = Duration::from_secs(2);

/// An answer that is being passed on. Its head and the first step's bytes are in the session's
/// `out`.
pub(super) struct Forward<'a, 'w, S: Stream> {
    session: &'a mut Session<'w, S>,
    flight: InFlight<S>,
    request: &'a Request,
    resend: &'a Resend<'a, S>,
    upstream: Upstream<S>,
    response: Response,
    forwarder: BodyForwarder,
    step: Step,
    upload: Upload,
    events: EventCounter,
    gaps: EventGaps,
    reader: ReaderWatch,
    /// When sending of the request began, since the data plane started.
    sent_at: Duration,
    /// When the answer began, on the same clock.
    begun_at: Duration,
    /// The client's connection closes after the answer.
    closes: bool,
    /// The engine's connection has ended.
    is_end: bool,
}

impl<'a, 'w, S: Stream> Forward<'a, 'w, S> {
    #[inline]
    pub(super) fn new(
        session: &'a mut Session<'w, S>,
        flight: InFlight<S>,
        request: &'a Request,
        resend: &'a Resend<'a, S>,
        answer: Answer<S>,
    ) -> Self {
        let Answer { upstream, head, step, before, sent_at, upload, is_end } = answer;
        let counters = &flight.engine.counters;
        counters.answered(head.response.status);
        let begun_at = session.worker.timers.elapsed();
        counters.ttft.observe(begun_at - sent_at);
        counters.bytes.add(before.bytes as u64);
        counters.events.add(before.events);
        let reader = ReaderWatch::new(session.worker.timers.coarse());
        Self {
            session,
            flight,
            request,
            resend,
            upstream,
            response: head.response,
            forwarder: head.forwarder,
            step,
            upload,
            events: head.events,
            gaps: EventGaps::default(),
            reader,
            sent_at,
            begun_at,
            closes: head.closes,
            is_end,
        }
    }

    /// Passes on step after step, until the answer is whole. [`Self::end_whole`] or
    /// [`Self::end_early`] comes next.
    ///
    /// Errors: the outcome of a request whose answer cannot be passed on whole.
    pub(super) async fn pass_on(&mut self) -> Result<(), Outcome> {
        loop {
            self.count_step();
            // Once the answer has begun the request goes to no other engine. A small one that is
            // about to end needs no such care.
            let is_small = self.step.is_done && self.resend.bytes <= JOIN_MAX;
            if self.upload.is_whole() && !self.resend.body.get().is_empty() && !is_small {
                self.resend.let_body_go(self.session);
            }
            self.send().await?;
            self.session.out.clear();
            self.upstream.consume(self.step.consumed);
            if self.step.is_done {
                return Ok(());
            }
            // At the end there may still be bytes to pass on, or a last chunk.
            if !self.is_end {
                self.fill().await?;
            }
            let stepped = self.forwarder.step(self.upstream.input(), self.is_end, &mut self.session.out);
            self.step = stepped.map_err(|Broken| Outcome::EngineBrokeMidStream)?;
        }
    }

    fn count_step(&mut self) {
        let counters = &self.flight.engine.counters;
        counters.bytes.add(self.step.consumed as u64);
        self.flight.engine.waits.hear(self.session.worker.timers.coarse());
        if self.response.is_event_stream {
            let new = self.events.count(&self.upstream.input()[..self.step.consumed]);
            if new > 0 {
                counters.events.add(new);
                let now = self.session.worker.timers.elapsed();
                self.gaps.observe(new, now, &counters.itl);
                if self.flight.is_test() && self.response.status < 400 && now - self.begun_at > PROVEN_AFTER {
                    self.flight.ended(Evidence::Served);
                }
            }
        }
    }

    /// Sends the step to the client, and more of the request to the engine.
    async fn send(&mut self) -> Result<(), Outcome> {
        if self.session.stored.is_some() {
            self.note_stored();
        }
        let Self { session, upstream, upload, step, resend, reader, .. } = self;
        let body = resend.body.get();
        let Session { client, deadline, out, wire, body: own, worker, .. } = &mut **session;
        let mut raw = step.raw;
        if raw > 0 && raw <= JOIN_MAX && !out.is_empty() {
            out.extend_from_slice(&upstream.input()[..raw]);
            raw = 0;
        }
        if !reader.takes_enough(client, out.len() + raw + step.tail.len(), worker.timers.coarse(), &worker.config) {
            return Err(Outcome::ClientStalled);
        }
        deadline.set(worker.config.client_stall_timeout);
        let mut sent = 0;
        let sending = until(client, deadline, body.held, |cx, client| {
            upload.poll(cx, upstream, body.parts(wire, client, own));
            client.poll_send(cx, [out, &upstream.input()[..raw], step.tail, b""], &mut sent)
        })
        .await;
        match sending {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(Interrupted::ClientGone) => Err(Outcome::ClientGone),
            Err(Interrupted::Late) => Err(Outcome::ClientStalled),
        }
    }

    /// Notes the ids of stored objects before the client can use them.
    fn note_stored(&mut self) {
        let Self { session, upstream, step, flight, response, forwarder, .. } = self;
        let Session { stored: Some(watch), out, worker, .. } = &mut **session else { return };
        let form =
            Form { status: response.status, is_event_stream: response.is_event_stream, is_chunked: forwarder.is_chunked() };
        let seen = watch.look([out, &upstream.input()[..step.raw], step.tail], form);
        stored::note(worker, seen, &flight.engine.name, &watch.class);
    }

    /// Waits for more of the answer, and sends more of the request.
    async fn fill(&mut self) -> Result<(), Outcome> {
        let Self { session, upstream, upload, resend, is_end, .. } = self;
        let body = resend.body.get();
        let Session { client, deadline, wire, body: own, worker, .. } = &mut **session;
        let gap = worker.config.gap_timeout;
        deadline.set(gap);
        let filling = until(client, deadline, body.held, |cx, client| {
            // An engine that still takes the request is not silent.
            if upload.poll(cx, upstream, body.parts(wire, client, own)) {
                deadline.set(gap);
            }
            upstream.poll_fill(cx)
        })
        .await;
        match filling {
            Ok(Ok(n)) => {
                *is_end = n == 0;
                Ok(())
            }
            Ok(Err(_)) => Err(Outcome::EngineBrokeMidStream),
            Err(Interrupted::ClientGone) => Err(Outcome::ClientGone),
            Err(Interrupted::Late) => Err(Outcome::GapTimeout),
        }
    }

    /// Counts a request whose answer is whole, and says how the client's connection goes on.
    pub(super) fn end_whole(self) -> AfterExchange {
        let Self { session, flight, upstream, .. } = self;
        let (worker, engine) = (session.worker, &flight.engine);
        session.is_served = !is_failure(self.response.status);
        worker.stats.count(Outcome::Ok);
        // Errors of the client say nothing of the engine; its own were counted before.
        if self.response.status < 400 {
            flight.ended(Evidence::Served);
        }
        engine.counters.e2e.observe(worker.timers.elapsed() - self.sent_at);
        if self.response.keep_alive && self.upload.is_whole() && !self.is_end {
            engine.checkin(upstream, worker.timers.coarse(), &worker.config);
        }
        if self.closes { AfterExchange::Close } else { AfterExchange::Again }
    }

    /// Counts a request whose answer ended early, and says how the client's connection goes on.
    pub(super) async fn end_early(self, outcome: Outcome) -> AfterExchange {
        self.session.worker.stats.count(outcome);
        match outcome {
            Outcome::ClientGone => AfterExchange::Close,
            Outcome::ClientStalled => AfterExchange::Reset,
            broken => self.end_broken(broken).await,
        }
    }

    /// Ends an answer that the engine did not finish. An event stream gets an error event that says
    /// why.
    async fn end_broken(self, outcome: Outcome) -> AfterExchange {
        let Self { session, flight, upstream, forwarder, .. } = self;
        let engine = &flight.engine;
        // Nobody needs the engine's work any more, and the close stops it.
        drop(upstream);
        engine.counters.broken_streams.add(1);
        engine.counters.failed(Evidence::Broken);
        flight.ended(Evidence::Broken);
        session.out.clear();
        if self.response.is_event_stream {
            let message = format!("engine {:?} broke off", engine.name);
            let event = error_event(session.api(self.request), &message, outcome.name());
            if forwarder.put_event(&event, &mut session.out) && session.send().await.is_ok() {
                return AfterExchange::Linger;
            }
        }
        if forwarder.ends_with_connection() { AfterExchange::Reset } else { AfterExchange::Close }
    }
}

/// Whether an engine's answer says that it could not serve the request, so that its client may come
/// back with it.
fn is_failure(status: u16) -> bool {
    status >= 500 || status == 429
}
