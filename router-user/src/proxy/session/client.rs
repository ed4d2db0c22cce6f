//! One client connection: request after request, in order, each answered before the next is read.

use std::future::poll_fn;
use std::net::{IpAddr, TcpStream};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use crate::config::ProxyConfig;
use crate::io::{Connection, Stream};
use crate::policy::Millis;
use crate::proxy::bodies::BodyRoom;
use crate::proxy::http1::chunk;
use crate::proxy::http1::head;
use crate::proxy::http1::head::Length;
use crate::proxy::http1::request;
use crate::proxy::http1::request::{Method, Request};
use crate::proxy::http1::target::decoded_path;
use crate::proxy::reply;
use crate::proxy::reply::{Api, Problem};
use crate::proxy::route;
use crate::proxy::stats::Outcome;
use crate::proxy::timers::Deadline;
use crate::proxy::worker::Worker;

/// Time for a client to read a refusal and to stop sending, before its connection is closed under
/// it.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes that are read and dropped meanwhile.
const LINGER_BYTES: usize = 4 << 20;
/// Bodies up to this size are copied behind the head: one copy is cheaper than a second part in a
/// send.
pub(super) const JOIN_MAX: usize = 4 << 10;
/// What is kept of a buffer between requests.
const KEPT_MAX: usize = 64 << 10;

/// How a connection goes on after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterExchange {
    Again,
    Close,
    /// Close, but not before the client has had a chance to read what it was told.
    Linger,
    /// Close so that the client cannot take it for a regular end.
    Reset,
}

/// Where the body of the request at hand is.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyAt {
    /// Bytes of the client's input that belong to the request.
    pub(super) held: usize,
    /// Of those, where the body starts; the whole input up to `held` from there is the body.
    start: usize,
    /// The body was chunked and is in a buffer of its own.
    pub(super) is_own: bool,
}

impl BodyAt {
    /// A body that is empty, or was let go.
    const NONE: Self = Self { held: 0, start: 0, is_own: false };

    pub(super) fn is_empty(self) -> bool {
        self.held == 0 && !self.is_own
    }

    /// The request as it is sent: `wire`, and the body where it was not joined to the head there.
    /// `own` is the buffer of chunked bodies.
    pub(super) fn parts<'b, S: Stream>(self, wire: &'b [u8], client: &'b Connection<S>, own: &'b [u8]) -> [&'b [u8]; 4] {
        let body = if self.is_own { own } else { &client.input()[self.start..self.held] };
        [wire, if body.len() <= JOIN_MAX { b"" } else { body }, b"", b""]
    }
}

pub(super) struct Session<'w, S: Stream> {
    pub(super) worker: &'w Rc<Worker<S>>,
    pub(super) client: Connection<S>,
    /// The client's address, as engines are told.
    client_ip: String,
    pub(super) deadline: Deadline,
    /// The request as engines get it.
    pub(super) wire: Vec<u8>,
    pub(super) body: Vec<u8>,
    /// What goes to the client next.
    pub(super) out: Vec<u8>,
    /// What the body takes of the room for all bodies.
    pub(super) room: BodyRoom,
}

/// Serves a client connection to its end.
pub(in crate::proxy) async fn serve<S: Stream>(worker: &Rc<Worker<S>>, socket: TcpStream, address: IpAddr) {
    let client = match Connection::adopt(socket) {
        Ok(client) => client,
        Err(error) => {
            tracing::warn!(%error, "failed to take over a client connection");
            return;
        }
    };
    let deadline = worker.timers.deadline();
    let room = worker.bodies.join(&deadline);
    // A client of IPv4 on a socket for both families has an address of IPv6 that stands for its
    // own.
    let client_ip = address.to_canonical().to_string();
    let mut session = Session { worker, client, client_ip, deadline, wire: Vec::new(), body: Vec::new(), out: Vec::new(), room };
    loop {
        match session.request().await {
            AfterExchange::Again => session.tidy(),
            AfterExchange::Close => return,
            AfterExchange::Linger => return session.linger().await,
            AfterExchange::Reset => return session.client.reset(),
        }
    }
}

/// What ends the wait for more of a request.
enum Wait {
    Filled,
    Gone,
    Expired,
    Stopping,
}

impl<S: Stream> Session<'_, S> {
    /// One request, from its first byte to the last of its answer.
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
            Err(error) => return self.refuse(Problem::head(error), None, 0).await,
        };
        let body = match self.body(&request, head_length).await {
            Ok(body) => body,
            Err(Ended::Gone) => {
                worker.stats.count(Outcome::ClientGone);
                return AfterExchange::Close;
            }
            Err(Ended::Refused(problem)) => return self.refuse(problem, Some(&request), 0).await,
        };
        let target = std::str::from_utf8(&self.wire[request.target.clone()]).expect("a parsed target is ASCII");
        let path = &*decoded_path(target);
        let routes = worker.routes();
        if let Some(answer) = route::local(&request, path, routes.as_ref().map(|r| &*r.routes)) {
            return match answer {
                Ok((content_type, body_bytes)) => self.answer(content_type, &body_bytes, &request, body.held).await,
                Err(problem) => self.refuse(problem, Some(&request), body.held).await,
            };
        }
        let Some(routes) = routes else { return self.refuse(Problem::not_ready(), Some(&request), body.held).await };
        let payload = if body.is_own { &self.body[..] } else { &self.client.input()[body.start..body.held] };
        let key = match route::routing_key(&request, path, payload, &routes.routes) {
            Ok(key) => key,
            Err(problem) => return self.refuse(problem, Some(&request), body.held).await,
        };
        let is_stateful = route::is_stateful(path);
        request::finish(&mut self.wire, request.length, payload.len());
        if payload.len() <= JOIN_MAX {
            self.wire.extend_from_slice(payload);
        }
        self.exchange(&request, body, &routes, key, is_stateful).await
    }

    /// Waits for a whole head; its length.
    async fn head(&mut self) -> Result<usize, AfterExchange> {
        let worker = self.worker;
        let (mut scanned, mut has_begun) = (0, false);
        self.deadline.set_idle(worker.config.client_idle_timeout);
        loop {
            if !self.client.input().is_empty() {
                if !has_begun {
                    has_begun = true;
                    self.deadline.set(worker.config.head_timeout);
                }
                match head::find_end(self.client.input(), &mut scanned, worker.config.max_head_bytes) {
                    Ok(Some(length)) => return Ok(length),
                    Ok(None) => {}
                    Err(error) => {
                        worker.stats.requests.add(1);
                        return Err(self.refuse(Problem::head(error), None, 0).await);
                    }
                }
            }
            match self.wait(!has_begun).await {
                Wait::Filled => {}
                Wait::Gone | Wait::Expired | Wait::Stopping if !has_begun => return Err(AfterExchange::Close),
                Wait::Expired => {
                    worker.stats.requests.add(1);
                    return Err(self.refuse(Problem::client_timeout(), None, 0).await);
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
    async fn wait(&mut self, may_stop: bool) -> Wait {
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

    /// Waits for the whole body.
    async fn body(&mut self, request: &Request, head_length: usize) -> Result<BodyAt, Ended> {
        let limit = self.worker.config.max_body_bytes;
        let length = match request.length {
            Length::Unknown => return Ok(BodyAt { held: head_length, start: head_length, is_own: false }),
            Length::Known(n) if n > limit as u64 => return Err(Ended::Refused(Problem::body_too_large(limit))),
            Length::Known(n) => n as usize,
            Length::Chunked => return self.chunked_body(request, head_length).await,
        };
        let held = head_length + length;
        let mut has = 0;
        let begun = self.worker.timers.coarse();
        loop {
            let come = (self.client.input().len() - head_length).min(length);
            self.take_room(come - has)?;
            has = come;
            if has == length {
                break;
            }
            self.expect_more(request, has == 0, begun, has).await?;
        }
        self.room.settle();
        Ok(BodyAt { held, start: head_length, is_own: false })
    }

    async fn chunked_body(&mut self, request: &Request, head_length: usize) -> Result<BodyAt, Ended> {
        let limit = self.worker.config.max_body_bytes;
        self.client.consume(head_length);
        self.body.clear();
        let mut is_first = true;
        let begun = self.worker.timers.coarse();
        let mut decoder = chunk::Decoder::default();
        loop {
            let input = self.client.input();
            match decoder.step(input).map_err(|e| Ended::Refused(Problem::head(e.into())))? {
                chunk::Piece::Framing(n) => self.client.consume(n),
                chunk::Piece::Data(n) if self.body.len() + n > limit => {
                    return Err(Ended::Refused(Problem::body_too_large(limit)));
                }
                chunk::Piece::Data(n) => {
                    self.take_room(n)?;
                    self.body.extend_from_slice(&input[..n]);
                    self.client.consume(n);
                }
                chunk::Piece::Incomplete => {
                    let is_none_here = is_first && self.client.input().is_empty();
                    is_first = false;
                    self.expect_more(request, is_none_here, begun, self.body.len()).await?;
                }
                chunk::Piece::Done => {
                    self.room.settle();
                    return Ok(BodyAt { held: 0, start: 0, is_own: true });
                }
            }
        }
    }

    fn take_room(&self, bytes: usize) -> Result<(), Ended> {
        if self.room.take(bytes, &self.worker.timers) { Ok(()) } else { Err(Ended::Refused(Problem::bodies_full())) }
    }

    /// Tells a client that asked whether to send its body to do so.
    async fn proceed(&mut self) -> Result<(), Ended> {
        self.out.clear();
        self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        self.send().await.map_err(|_| Ended::Gone)
    }

    /// Waits for more of a body of which `received` bytes have come since it was `begun`. A client
    /// that waits to be told to send is told so, where `is_none_here` yet.
    async fn expect_more(&mut self, request: &Request, is_none_here: bool, begun: Millis, received: usize) -> Result<(), Ended> {
        self.room.expect_more(self.worker.timers.coarse());
        if is_none_here && request.expects_continue {
            self.proceed().await?;
        }
        self.deadline.set(patience(&self.worker.config, self.worker.timers.coarse().saturating_sub(begun), received));
        match self.wait(false).await {
            _ if self.room.is_evicted() => Err(Ended::Refused(Problem::bodies_full())),
            Wait::Filled => Ok(()),
            Wait::Gone | Wait::Stopping => Err(Ended::Gone),
            Wait::Expired => Err(Ended::Refused(Problem::client_timeout())),
        }
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

    /// Answers with a problem, which is also the request's outcome.
    pub(super) async fn refuse(&mut self, problem: Problem, request: Option<&Request>, held: usize) -> AfterExchange {
        self.worker.stats.count(problem.outcome);
        let closes = problem.closes || !request.is_some_and(|r| r.keep_alive) || self.worker.is_stopping.get();
        self.out.clear();
        match request {
            Some(r) => problem.write(self.api(r), r.method, &self.wire[r.request_id.clone()], closes, &mut self.out),
            None => problem.write(Api::OpenAi, Method::Other, b"", closes, &mut self.out),
        }
        self.finish(closes, held).await
    }

    pub(super) fn api(&self, request: &Request) -> Api {
        Api::of(&self.wire[request.target.clone()])
    }

    async fn answer(&mut self, content_type: &str, body: &[u8], request: &Request, held: usize) -> AfterExchange {
        self.worker.stats.count(Outcome::Local);
        let closes = !request.keep_alive || self.worker.is_stopping.get();
        self.out.clear();
        let id = &self.wire[request.request_id.clone()];
        reply::write(200, content_type, body, None, request.method, id, closes, &mut self.out);
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

    /// Lets go of a body that no engine will be sent again.
    pub(super) fn let_body_go(&mut self, at: &mut BodyAt) {
        self.client.consume(at.held);
        *at = BodyAt::NONE;
        if self.body.capacity() > KEPT_MAX {
            self.body = Vec::new();
        }
        self.room.release();
    }

    /// Lets go of what a large request has taken.
    fn tidy(&mut self) {
        self.room.release();
        for buffer in [&mut self.wire, &mut self.body, &mut self.out] {
            buffer.clear();
            buffer.shrink_to(KEPT_MAX);
        }
    }

    /// Closes such that the client can read what it was told: a close with unread bytes would reset
    /// the connection under it.
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

/// How long to wait for more of a body of which `received` bytes have come in `elapsed`: not longer
/// than one gap, nor than it takes for its rate to fall below the least. Unit of `elapsed`: ms.
fn patience(config: &ProxyConfig, elapsed: Millis, received: usize) -> Duration {
    let gap = config.body_gap_timeout;
    let Some(earned_ms) = (received as u64).saturating_mul(1000).checked_div(config.min_upload_bytes_per_s) else { return gap };
    let due = gap.saturating_add(Duration::from_millis(earned_ms));
    gap.min(due.saturating_sub(Duration::from_millis(elapsed)))
}

/// Why there is no whole body.
enum Ended {
    Gone,
    Refused(Problem),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_more_of_a_body_ends_with_the_gap_or_with_its_mean_rate() {
        let gap = Duration::from_secs(30);
        let config = ProxyConfig { body_gap_timeout: gap, min_upload_bytes_per_s: 1_000, ..Default::default() };
        for (elapsed_s, received, left_s) in
            [(0, 0, 30), (29, 0, 1), (31, 0, 0), (29, 2_000, 3), (60, 50_000, 20), (60, 1 << 30, 30), (100, 60_000, 0)]
        {
            assert_eq!(patience(&config, 1000 * elapsed_s, received), Duration::from_secs(left_s), "{received} in {elapsed_s} s");
        }
        let config = ProxyConfig { min_upload_bytes_per_s: 0, ..config };
        assert_eq!(patience(&config, 1_000_000, 0), gap);
    }
}
