//! One client connection: request after request, in order, each answered before the next is read.

use std::future::poll_fn;
use std::net::{IpAddr, TcpStream};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::body::{JOIN_MAX, NoBody};
use super::stored;
use crate::io::{Connection, Stream};
use crate::proxy::bodies::BodyRoom;
use crate::proxy::http1::head::{self, Length};
use crate::proxy::http1::request;
use crate::proxy::http1::request::{Method, Request};
use crate::proxy::http1::target::decoded_path;
use crate::proxy::reply::{Api, ErrorReply, Reply};
use crate::proxy::route::{self, BodyScan};
use crate::proxy::stats::Outcome;
use crate::proxy::stored::{AnswerWatch, StoredPath};
use crate::proxy::timers::Deadline;
use crate::proxy::worker::{Place, Worker};
use crate::telemetry::limited;

/// Time that a client gets to read a refusal and to stop sending before its connection closes. A
/// few round trips, also over a bad network.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes that are read and dropped in that time, about what a fast client has in flight.
const LINGER_BYTES: usize = 4 << 20;
/// Longest wait for the head of a request in the reserve: far above a round trip, and short beside
/// the time-outs of health probes.
const RESERVE_HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a buffer's capacity that are kept between requests.
pub(super) const KEPT_MAX: usize = 64 << 10;

/// How a connection goes on after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterExchange {
    Again,
    Close,
    /// Close after the client has had time to read the answer.
    Linger,
    /// Reset, so that the client cannot take the close for the regular end of a body.
    Reset,
}

pub(super) struct Session<'w, S: Stream> {
    pub(super) worker: &'w Rc<Worker<S>>,
    pub(super) client: Connection<S>,
    place: Place,
    /// The client's address, for `x-forwarded-for`.
    pub(super) client_ip: String,
    pub(super) deadline: Deadline,
    /// The request as it is sent to engines.
    pub(super) wire: Vec<u8>,
    pub(super) body: Vec<u8>,
    /// The last request has its answer, and no failure.
    pub(super) is_served: bool,
    /// Bytes to be sent to the client next.
    pub(super) out: Vec<u8>,
    /// This connection's share of the room for all bodies.
    pub(super) room: BodyRoom,
    /// Looks for ids in the answer to the request at hand, where it may have some.
    pub(super) stored: Option<AnswerWatch>,
}

/// Serves a client connection to its end.
pub(in crate::proxy) async fn serve<S: Stream>(worker: &Rc<Worker<S>>, socket: TcpStream, address: IpAddr, place: Place) {
    let client = match Connection::adopt(socket) {
        Ok(client) => client,
        Err(error) => {
            limited!(warn, %error, "failed to take over a client connection");
            return;
        }
    };
    let deadline = worker.timers.deadline();
    let room = worker.bodies.join(&deadline);
    // A client of IPv4 on a socket for both families has an address of IPv6 that stands for its
    // own.
    let client_ip = address.to_canonical().to_string();
    let (wire, body, out) = (Vec::new(), Vec::new(), Vec::new());
    let mut session =
        Session { worker, client, place, client_ip, deadline, wire, body, is_served: false, out, room, stored: None };
    loop {
        match session.request().await {
            AfterExchange::Again => session.tidy(),
            AfterExchange::Close => return,
            AfterExchange::Linger => return session.linger().await,
            AfterExchange::Reset => return session.client.reset(),
        }
    }
}

/// How the wait for more of a request ended.
pub(super) enum Wait {
    Filled,
    Gone,
    Expired,
    Stopping,
}

impl<S: Stream> Session<'_, S> {
    /// Serves one request, from its first byte to the last of its answer.
    async fn request(&mut self) -> AfterExchange {
        let head_length = match self.head().await {
            Ok(length) => length,
            Err(next) => return next,
        };
        let worker = self.worker;
        worker.stats.requests.add(1);
        let head = &self.client.input()[..head_length];
        let parsed =
            request::parse(head, worker.config.max_head_fields, &self.client_ip, &mut self.wire, |out| worker.request_id(out));
        let request = match parsed {
            Ok(request) => request,
            Err(error) => return self.refuse(ErrorReply::head(error), None, 0).await,
        };
        if self.place == Place::Reserve && !self.asks_for_health(&request) {
            return self.refuse(ErrorReply::overloaded(), Some(&request), 0).await;
        }
        let body = match self.body(&request, head_length).await {
            Ok(body) => body,
            Err(NoBody::Gone) => {
                worker.stats.count(Outcome::ClientGone);
                return AfterExchange::Close;
            }
            Err(NoBody::Refused(problem)) => return self.refuse(problem, Some(&request), 0).await,
        };
        let target = std::str::from_utf8(&self.wire[request.target.clone()]).expect("a parsed target is ASCII");
        let path = &*decoded_path(target);
        let routes = worker.routes();
        if let Some(answer) = route::local(&request, path, routes.as_ref().map(|r| &*r.routes), &worker.plane) {
            return match answer {
                Ok((content_type, body_bytes)) => self.answer(content_type, &body_bytes, &request, body.held).await,
                Err(problem) => self.refuse(problem, Some(&request), body.held).await,
            };
        }
        let Some(routes) = routes else { return self.refuse(ErrorReply::not_ready(), Some(&request), body.held).await };
        let payload = if body.is_own { &self.body[..] } else { &self.client.input()[body.start..body.held] };
        let content_type = &self.wire[request.content_type.clone()];
        let mut scan = BodyScan::new(&request, path, content_type, payload);
        let facts = loop {
            match scan.advance() {
                Some(facts) => break facts,
                // The other connections of this worker have their turn.
                None => tokio::task::yield_now().await,
            }
        };
        let stored = StoredPath::of(path);
        let key = match stored::route(worker, &request, path, stored, facts, &routes.routes) {
            Ok(key) => key,
            Err(problem) => return self.refuse(problem, Some(&request), body.held).await,
        };
        self.stored = stored.and_then(|stored| stored::watch(worker, stored, request.method, key.class, &routes.routes));
        let is_stateful = stored.is_some_and(|stored| stored.keeps_result(request.method));
        request::finish(&mut self.wire, request.length, payload.len());
        if payload.len() <= JOIN_MAX {
            self.wire.extend_from_slice(payload);
        }
        self.exchange(&request, body, &routes, key, is_stateful).await
    }

    /// Waits for a whole head, and returns its length.
    async fn head(&mut self) -> Result<usize, AfterExchange> {
        let worker = self.worker;
        let (mut scanned, mut has_begun) = (0, false);
        let head_timeout = match self.place {
            Place::Regular => {
                self.deadline.set_idle(worker.config.client_idle_timeout);
                worker.config.head_timeout
            }
            Place::Reserve => {
                self.deadline.set(RESERVE_HEAD_TIMEOUT);
                worker.config.head_timeout.min(RESERVE_HEAD_TIMEOUT)
            }
        };
        loop {
            if !self.client.input().is_empty() {
                if !has_begun {
                    has_begun = true;
                    self.deadline.set(head_timeout);
                }
                match head::find_end(self.client.input(), &mut scanned, worker.config.max_head_bytes) {
                    Ok(Some(length)) => return Ok(length),
                    Ok(None) => {}
                    Err(error) => {
                        worker.stats.requests.add(1);
                        return Err(self.refuse(ErrorReply::head(error), None, 0).await);
                    }
                }
            }
            match self.wait(!has_begun).await {
                Wait::Filled => {}
                Wait::Gone | Wait::Expired | Wait::Stopping if !has_begun => return Err(AfterExchange::Close),
                Wait::Expired => {
                    worker.stats.requests.add(1);
                    return Err(self.refuse(ErrorReply::client_timeout(), None, 0).await);
                }
                Wait::Gone | Wait::Stopping => {
                    worker.stats.requests.add(1);
                    worker.stats.count(Outcome::ClientGone);
                    return Err(AfterExchange::Close);
                }
            }
        }
    }

    /// Waits for more input.
    pub(super) async fn wait(&mut self, may_stop: bool) -> Wait {
        let Self { client, deadline, worker, .. } = self;
        poll_fn(|cx| {
            match client.poll_fill(cx) {
                Poll::Ready(Ok(1..)) => return Poll::Ready(Wait::Filled),
                Poll::Ready(_) => return Poll::Ready(Wait::Gone),
                Poll::Pending => {}
            }
            if deadline.poll(cx).is_ready() {
                return Poll::Ready(Wait::Expired);
            }
            if may_stop && worker.is_stopping.get() { Poll::Ready(Wait::Stopping) } else { Poll::Pending }
        })
        .await
    }

    /// Sends `out` to the client.
    pub(super) async fn send(&mut self) -> Result<(), Outcome> {
        let Self { client, deadline, out, worker, .. } = self;
        deadline.set(worker.config.client_stall_timeout);
        let mut sent = 0;
        poll_fn(|cx| match client.poll_send(cx, [out, b"", b"", b""], &mut sent) {
            Poll::Ready(outcome) => Poll::Ready(outcome.map_err(|_| Outcome::ClientGone)),
            Poll::Pending => deadline.poll(cx).map(|()| Err(Outcome::ClientStalled)),
        })
        .await
    }

    /// Answers with an error, and counts its outcome.
    pub(super) async fn refuse(&mut self, problem: ErrorReply, request: Option<&Request>, held: usize) -> AfterExchange {
        self.worker.stats.count(problem.outcome);
        let closes = problem.closes || request.is_none_or(|r| self.closes_after(r));
        self.out.clear();
        match request {
            Some(r) => problem.write(self.api(r), r.method, &self.wire[r.request_id.clone()], closes, &mut self.out),
            None => problem.write(Api::OpenAi, Method::Other, b"", closes, &mut self.out),
        }
        self.finish(closes, held).await
    }

    fn closes_after(&self, request: &Request) -> bool {
        !request.keep_alive || self.worker.is_stopping.get() || self.place == Place::Reserve
    }

    /// Whether a request can be answered in the reserve: it asks for health, and has no body.
    fn asks_for_health(&self, request: &Request) -> bool {
        let target = std::str::from_utf8(&self.wire[request.target.clone()]).expect("a parsed target is ASCII");
        matches!(request.length, Length::Unknown | Length::Known(0)) && route::is_health(request, &decoded_path(target))
    }

    pub(super) fn api(&self, request: &Request) -> Api {
        Api::of(&self.wire[request.target.clone()])
    }

    async fn answer(&mut self, content_type: &str, body: &[u8], request: &Request, held: usize) -> AfterExchange {
        self.worker.stats.count(Outcome::Local);
        let closes = self.closes_after(request);
        self.out.clear();
        let id = &self.wire[request.request_id.clone()];
        Reply::ok(content_type, body).write(request.method, id, closes, &mut self.out);
        self.finish(closes, held).await
    }

    async fn finish(&mut self, closes: bool, held: usize) -> AfterExchange {
        match self.send().await {
            Err(_) => AfterExchange::Close,
            Ok(()) if closes => AfterExchange::Linger,
            Ok(()) => {
                self.client.consume(held);
                AfterExchange::Again
            }
        }
    }

    /// Frees the memory that a large request has taken.
    fn tidy(&mut self) {
        self.room.release();
        for buffer in [&mut self.wire, &mut self.body, &mut self.out] {
            buffer.clear();
            buffer.shrink_to(KEPT_MAX);
        }
    }

    /// Closes after the client has had time to read the answer. A close with unread bytes would
    /// reset the connection, and the answer could be lost.
    async fn linger(mut self) {
        self.room.release();
        self.client.finish();
        self.deadline.set(LINGER);
        let mut dropped = 0;
        while dropped < LINGER_BYTES {
            let n = self.client.input().len();
            dropped += n;
            self.client.consume(n);
            if !matches!(self.wait(false).await, Wait::Filled) {
                return;
            }
        }
    }
}
