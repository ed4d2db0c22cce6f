//! One request and its engines: pick, connect, send, and pass the answer on.
//!
//! The commit point is the first byte of an answer's body that can be passed on: until then nothing has gone to the client, and the
//! request may go to another engine. After it never.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use router_common::slot::slot_of;

use crate::io::{Connection, Stream};
use crate::model::EngineId;
use crate::policy::affinity;
use crate::policy::pick::{Pick, pick};
use crate::proxy::histogram::EventGaps;
use crate::proxy::http1::head;
use crate::proxy::http1::head::HeadError;
use crate::proxy::http1::request::Request;
use crate::proxy::http1::response;
use crate::proxy::http1::response::Response;
use crate::proxy::relay::{Broken, Relay, Step};
use crate::proxy::reply::{Problem, error_event};
use crate::proxy::route;
use crate::proxy::route::Asked;
use crate::proxy::session::client::{BodyAt, JOIN_MAX, Next, Session};
use crate::proxy::stats::{Outcome, Retry};
use crate::proxy::upstream::{Engine, View};
use crate::publish::slots::full_rank;

/// Interim answers (1xx) that are read and dropped before an engine is taken for broken.
const INTERIM_MAX: usize = 8;
/// Bytes of an engine's head. Not for configuration: engines are ours, and their heads are small.
const ENGINE_HEAD_MAX: usize = 64 << 10;

/// Why an engine gave no answer that could be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    ClientGone,
    Unreachable,
    /// The connection ended before a byte had come.
    Closed,
    /// The connection ended within the head, or between head and body.
    Cut,
    Malformed(HeadError),
    Late,
}

/// An answer's head, and how its body is passed on.
#[derive(Clone, Copy, Debug)]
struct AnswerHead {
    response: Response,
    relay: Relay,
    /// The client's connection closes after it.
    closes: bool,
}

/// An answer of which there is something to pass on.
struct Answer<S: Stream> {
    upstream: Connection<S>,
    head: AnswerHead,
    /// What the client gets first, after the head.
    step: Step,
    /// Bytes of the body that were used before it.
    framing_bytes: usize,
    sent_at: Duration,
    upload: Upload,
    /// The engine's connection has ended.
    is_end: bool,
}

/// The request on its way to an engine. It goes on while the answer comes, because an engine may begin to answer before it has read
/// the whole body.
#[derive(Clone, Copy, Debug, Default)]
struct Upload {
    sent: usize,
    state: UploadState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UploadState {
    #[default]
    Sending,
    Whole,
    /// The engine takes no more. An answer may have come before, so this alone ends nothing.
    Failed,
}

impl Upload {
    /// Sends as much of `parts` as the connection takes now; true when that was anything.
    fn poll<S: Stream>(&mut self, cx: &mut Context<'_>, upstream: &mut Connection<S>, parts: [&[u8]; 4]) -> bool {
        if self.state != UploadState::Sending {
            return false;
        }
        let before = self.sent;
        match upstream.poll_send(cx, parts, &mut self.sent) {
            Poll::Ready(Ok(())) => self.state = UploadState::Whole,
            Poll::Ready(Err(_)) => self.state = UploadState::Failed,
            Poll::Pending => {}
        }
        self.sent > before
    }

    fn is_whole(self) -> bool {
        self.state == UploadState::Whole
    }
}

impl<S: Stream> Session<'_, S> {
    /// Sends the request in `wire` to an engine and its answer to the client.
    pub(crate) async fn exchange(
        &mut self,
        request: &Request,
        body: BodyAt,
        view: &Rc<View<S>>,
        asked: Asked,
        is_stateful: bool,
    ) -> Next {
        let worker = self.worker;
        let config = &worker.config;
        // Refused requests are demand too; but what comes back because it was refused would be counted twice.
        if !request.is_repeated {
            view.count_arrival(asked.class);
        }
        worker.budget.borrow_mut().earn(worker.timers.coarse());
        let route = &view.routes.classes[asked.class.index()];
        let key = asked.affinity.unwrap_or_else(|| worker.random());
        let slot = slot_of(key);
        if route.candidates.is_empty() {
            let problem = Problem::no_eligible_engine(&route::constraint(asked.class, &view.routes));
            return self.refuse(problem, Some(request), body.held).await;
        }
        if route.shed_frac > 0.0 && affinity::is_shed(key, route.shed_frac) {
            return self.refuse(Problem::shed_planned(), Some(request), body.held).await;
        }
        let mut tried: Vec<EngineId> = Vec::new();
        let mut retry = None;
        // What the client is told when no engine is left: the last one's own failure, where it says more.
        let mut failure: Option<Problem> = None;
        loop {
            let now = worker.timers.coarse();
            let choice = pick(
                route.table.ranks(slot),
                || full_rank(&route.candidates, slot),
                &tried,
                |engine| view.engine(engine).standing(now, config.max_in_flight_per_engine),
            );
            let id = match choice {
                Pick::Engine(engine) if tried.len() < config.max_attempts.max(1) && self.may_retry(retry, is_stateful) => engine,
                Pick::Full if tried.is_empty() => return self.refuse(Problem::engines_full(), Some(request), body.held).await,
                _ => {
                    let problem = failure.unwrap_or_else(|| Problem::engines_unavailable(tried.len()));
                    return self.refuse(problem, Some(request), body.held).await;
                }
            };
            failure = None;
            let engine = view.engine(id);
            let _in_flight = engine.begin(now);
            view.count_pick(asked.class, id);
            retry = match self.attempt(engine, request, body, is_stateful).await {
                Ok(answer) => return self.deliver(answer, engine, request, body).await,
                Err(Failure::ClientGone) => {
                    worker.stats.count(Outcome::ClientGone);
                    return Next::Close;
                }
                Err(Failure::Late) => return self.refuse(Problem::ttft_timeout(&engine.name), Some(request), body.held).await,
                Err(Failure::Malformed(error)) => {
                    failure = Some(Problem::bad_response(&engine.name, error));
                    Some(Retry::BadResponse)
                }
                Err(Failure::Unreachable) => Some(Retry::ConnectFailed),
                Err(Failure::Closed | Failure::Cut) => {
                    engine.counters.resets.add(1);
                    Some(Retry::Reset)
                }
            };
            tried.push(id);
        }
    }

    /// Whether the request may go to one more engine, after what happened at the last one; the price is paid and the retry counted.
    fn may_retry(&self, retry: Option<Retry>, is_stateful: bool) -> bool {
        let Some(retry) = retry else { return true };
        let worker = self.worker;
        // A refused connection costs nobody anything; a request that was sent may have been worked on.
        if retry != Retry::ConnectFailed && (is_stateful || !worker.budget.borrow_mut().spend(worker.timers.coarse())) {
            worker.stats.retry_denied();
            return false;
        }
        worker.stats.retried(retry);
        true
    }

    /// Sends the request to one engine, and waits until its answer can be begun.
    async fn attempt(
        &mut self,
        engine: &Rc<Engine<S>>,
        request: &Request,
        body: BodyAt,
        is_stateful: bool,
    ) -> Result<Answer<S>, Failure> {
        let worker = self.worker;
        // On a kept connection that ends, nobody knows whether the engine has seen the request; where that matters, take a new one.
        let kept = if is_stateful { None } else { engine.take_idle(worker.timers.coarse(), &worker.config) };
        if let Some(upstream) = kept {
            match self.converse(upstream, engine, request, body).await {
                // Most likely the engine closed it while it was idle and has not seen the request.
                Err(Failure::Closed) => {
                    engine.counters.replays.add(1);
                    worker.stats.retried(Retry::StaleConnection);
                }
                outcome => return outcome,
            }
        }
        let upstream = self.connect(engine, body).await?;
        self.converse(upstream, engine, request, body).await
    }

    async fn connect(&mut self, engine: &Rc<Engine<S>>, body: BodyAt) -> Result<Connection<S>, Failure> {
        let Self { client, deadline, worker, .. } = self;
        deadline.set(worker.config.connect_timeout);
        let outcome = match Connection::<S>::connect(engine.address) {
            Ok(mut upstream) => {
                let connected = poll_fn(|cx| {
                    if let Poll::Ready(outcome) = upstream.poll_connected(cx) {
                        return Poll::Ready(Ok(outcome));
                    }
                    if Self::is_gone(client, cx, body.held) {
                        return Poll::Ready(Err(Failure::ClientGone));
                    }
                    deadline.poll(cx).map(|()| Ok(Err(io::ErrorKind::TimedOut.into())))
                })
                .await?;
                connected.map(|()| upstream)
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(upstream) => {
                engine.counters.connects.add(1);
                engine.reached();
                Ok(upstream)
            }
            Err(error) => {
                if is_ours(&error) {
                    tracing::warn!(engine = %engine.name, %error, "failed to connect for want of local resources");
                } else {
                    tracing::debug!(engine = %engine.name, %error, "failed to connect");
                    engine.failed(worker.timers.now(), error.kind() == io::ErrorKind::TimedOut);
                }
                Err(Failure::Unreachable)
            }
        }
    }

    /// Sends the request on a connection, and waits until there is something of an answer to pass on. The head for the client is left in
    /// `out`, followed by what the first step put there.
    async fn converse(
        &mut self,
        mut upstream: Connection<S>,
        engine: &Engine<S>,
        request: &Request,
        body: BodyAt,
    ) -> Result<Answer<S>, Failure> {
        let Self { client, deadline, worker, wire, body: own, out, .. } = self;
        deadline.set(worker.config.ttft_timeout);
        let sent_at = worker.timers.elapsed();
        let (mut upload, mut is_end) = (Upload::default(), false);
        let (mut scanned, mut interim, mut framing_bytes) = (0, 0, 0);
        let mut head: Option<AnswerHead> = None;
        out.clear();
        let (head, step) = poll_fn(|cx| {
            upload.poll(cx, &mut upstream, [&wire[..], Self::separate_body(client, own, body), b"", b""]);
            loop {
                // What has come is looked at before more is asked for.
                while head.is_none() {
                    match head::find_end(upstream.input(), &mut scanned, ENGINE_HEAD_MAX) {
                        Ok(Some(length)) => {
                            let parsed = response::parse(&upstream.input()[..length], request.method, out);
                            upstream.consume(length);
                            scanned = 0;
                            match parsed {
                                Ok(response) if response.is_interim() && response.status != 101 && interim < INTERIM_MAX => {
                                    out.clear();
                                    interim += 1;
                                }
                                Ok(response) if response.is_interim() => {
                                    return Poll::Ready(Err(Failure::Malformed(HeadError::Syntax("unasked interim answer"))));
                                }
                                Ok(response) => {
                                    let relay = Relay::new(response.body, request.minor);
                                    let ends_with_connection = relay.put_framing(out);
                                    let closes = ends_with_connection || !request.keep_alive || worker.is_stopping.get();
                                    put_own_fields(out, &engine.name, &wire[request.request_id.clone()], closes);
                                    head = Some(AnswerHead { response, relay, closes });
                                }
                                Err(error) => return Poll::Ready(Err(Failure::Malformed(error))),
                            }
                        }
                        Ok(None) => break,
                        Err(error) => return Poll::Ready(Err(Failure::Malformed(error))),
                    }
                }
                if let Some(of_head) = &mut head {
                    let held = out.len();
                    match of_head.relay.step(upstream.input(), is_end, out) {
                        Ok(step) if step.is_done || step.raw > 0 || !step.tail.is_empty() || out.len() > held => {
                            return Poll::Ready(Ok((*of_head, step)));
                        }
                        Ok(step) => {
                            framing_bytes += step.consumed;
                            upstream.consume(step.consumed);
                        }
                        Err(Broken) if is_end => return Poll::Ready(Err(Failure::Cut)),
                        Err(Broken) => return Poll::Ready(Err(Failure::Malformed(HeadError::Syntax("malformed chunk")))),
                    }
                }
                if is_end {
                    let has_bytes = head.is_some() || interim > 0 || !upstream.input().is_empty();
                    return Poll::Ready(Err(if has_bytes { Failure::Cut } else { Failure::Closed }));
                }
                match upstream.poll_fill(cx) {
                    Poll::Ready(Ok(1..)) => {}
                    Poll::Ready(Ok(_)) => is_end = true,
                    // A reset is no regular end, not even of a body that lasts until the connection's end.
                    Poll::Ready(Err(_)) => {
                        let has_bytes = head.is_some() || interim > 0 || !upstream.input().is_empty();
                        return Poll::Ready(Err(if has_bytes { Failure::Cut } else { Failure::Closed }));
                    }
                    Poll::Pending => break,
                }
            }
            if Self::is_gone(client, cx, body.held) {
                return Poll::Ready(Err(Failure::ClientGone));
            }
            deadline.poll(cx).map(|()| Err(Failure::Late))
        })
        .await?;
        Ok(Answer { upstream, head, step, framing_bytes, sent_at, upload, is_end })
    }

    /// Passes an answer on to the client, whose head and first step are in `out`.
    async fn deliver(&mut self, answer: Answer<S>, engine: &Rc<Engine<S>>, request: &Request, mut body: BodyAt) -> Next {
        let worker = self.worker;
        let Answer { mut upstream, head, mut step, framing_bytes, sent_at, mut upload, mut is_end } = answer;
        let AnswerHead { response, mut relay, closes } = head;
        let counters = &engine.counters;
        engine.reached();
        counters.served[usize::from(response.status / 100).clamp(1, 5) - 1].add(1);
        counters.ttft.observe(worker.timers.elapsed() - sent_at);
        counters.bytes.add(framing_bytes as u64);

        let gap = worker.config.gap_timeout;
        let (mut events, mut gaps) = (EventCount::default(), EventGaps::default());
        let (outcome, is_intact) = loop {
            counters.bytes.add(step.consumed as u64);
            if response.is_event_stream {
                let new = events.count(&upstream.input()[..step.consumed]);
                if new > 0 {
                    counters.events.add(new);
                    gaps.observe(new, worker.timers.elapsed(), &counters.itl);
                }
            }
            // Once the answer has begun the request goes to no other engine.
            if upload.is_whole() && (body.held > 0 || body.is_own) {
                self.let_body_go(&mut body);
            }
            // Sends it, watching the client.
            let Self { client, deadline, out, wire, body: own, .. } = self;
            let mut raw = step.raw;
            if raw > 0 && raw <= JOIN_MAX && !out.is_empty() {
                out.extend_from_slice(&upstream.input()[..raw]);
                raw = 0;
            }
            deadline.set(gap);
            let mut sent = 0;
            let sending = poll_fn(|cx| {
                upload.poll(cx, &mut upstream, [&wire[..], Self::separate_body(client, own, body), b"", b""]);
                match client.poll_send(cx, [out, &upstream.input()[..raw], step.tail, b""], &mut sent) {
                    Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Outcome::ClientGone)),
                    Poll::Pending => {}
                }
                if Self::is_gone(client, cx, body.held) {
                    return Poll::Ready(Err(Outcome::ClientGone));
                }
                deadline.poll(cx).map(|()| Err(Outcome::ClientStalled))
            })
            .await;
            if let Err(outcome) = sending {
                break (outcome, false);
            }
            out.clear();
            upstream.consume(step.consumed);
            if step.is_done {
                break (Outcome::Ok, true);
            }
            // Waits for more, unless the end is only to be drawn.
            deadline.set(gap);
            let filling = poll_fn(|cx| {
                if is_end {
                    return Poll::Ready(Ok(()));
                }
                // An engine that still takes the request is not silent.
                if upload.poll(cx, &mut upstream, [&wire[..], Self::separate_body(client, own, body), b"", b""]) {
                    deadline.set(gap);
                }
                match upstream.poll_fill(cx) {
                    Poll::Ready(Ok(1..)) => return Poll::Ready(Ok(())),
                    Poll::Ready(Ok(_)) => {
                        is_end = true;
                        return Poll::Ready(Ok(()));
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Outcome::EngineBrokeMidStream)),
                    Poll::Pending => {}
                }
                if Self::is_gone(client, cx, body.held) {
                    return Poll::Ready(Err(Outcome::ClientGone));
                }
                deadline.poll(cx).map(|()| Err(Outcome::GapTimeout))
            })
            .await;
            if let Err(outcome) = filling {
                break (outcome, false);
            }
            step = match relay.step(upstream.input(), is_end, out) {
                Ok(step) => step,
                Err(Broken) => break (Outcome::EngineBrokeMidStream, false),
            };
        };
        worker.stats.count(outcome);
        if is_intact {
            counters.e2e.observe(worker.timers.elapsed() - sent_at);
            if response.keep_alive && upload.is_whole() && !is_end {
                engine.keep(upstream, worker.timers.coarse(), &worker.config);
            }
            if closes {
                return Next::Close;
            }
            self.client.consume(body.held);
            return Next::Again;
        }
        // The engine's work is of no use any more, whoever broke off.
        drop(upstream);
        if outcome == Outcome::ClientGone {
            return Next::Close;
        }
        if outcome == Outcome::ClientStalled {
            return Next::Reset;
        }
        counters.broken_streams.add(1);
        self.out.clear();
        if response.is_event_stream {
            let message = format!("engine {:?} broke off", engine.name);
            let event = error_event(self.api(request), &message, outcome.name());
            if relay.put_event(&event, &mut self.out) && self.send().await.is_ok() {
                return Next::Linger;
            }
        }
        if relay.ends_with_connection() { Next::Reset } else { Next::Close }
    }
}

/// Ends the head in `out` with the fields that are ours.
fn put_own_fields(out: &mut Vec<u8>, engine: &str, request_id: &[u8], closes: bool) {
    out.extend_from_slice(b"x-ilb-engine: ");
    out.extend_from_slice(engine.as_bytes());
    out.extend_from_slice(b"\r\nx-request-id: ");
    out.extend_from_slice(request_id);
    out.extend_from_slice(if closes { b"\r\nconnection: close\r\n\r\n" } else { b"\r\n\r\n" });
}

/// Whether a connect failed for want of descriptors, ports or memory of this machine, which says nothing about the engine.
fn is_ours(error: &io::Error) -> bool {
    let wants = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL, libc::EACCES, libc::EPERM];
    error.raw_os_error().is_some_and(|code| wants.contains(&code))
}

/// Counts the blank lines that end events, also when one is cut by two reads.
#[derive(Clone, Copy, Debug, Default)]
struct EventCount {
    ends_in_line_feed: bool,
}

impl EventCount {
    fn count(&mut self, bytes: &[u8]) -> u64 {
        let mut events = 0;
        let mut previous = if self.ends_in_line_feed { Some(usize::MAX) } else { None };
        for at in memchr::memchr_iter(b'\n', bytes) {
            if previous == Some(at.wrapping_sub(1)) {
                events += 1;
                // The second line feed of one event is not the first of the next.
                previous = None;
            } else {
                previous = Some(at);
            }
        }
        if !bytes.is_empty() {
            self.ends_in_line_feed = previous == Some(bytes.len() - 1);
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_at_any_split() {
        let stream = b"data: a\n\ndata: b\ndata: c\n\n: comment\n\n\ndata: [DONE]\n\n";
        for split in 0..=stream.len() {
            let mut count = EventCount::default();
            assert_eq!(count.count(&stream[..split]) + count.count(&stream[split..]), 4, "split at {split}");
        }
    }
}
