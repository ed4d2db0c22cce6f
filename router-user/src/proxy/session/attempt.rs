//! One attempt at one engine: connect, send the request, and wait until its answer can be begun.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use super::body::BodyAt;
use super::client::Session;
use super::forwarder::Step;
use super::interrupt::{Interrupted, until};
use super::opening::{AnswerHead, Before, Opening, OwnFields, Unanswered};
use super::resend::Resend;
use crate::io::{Connection, Stream};
use crate::model::{ClassId, EngineId};
use crate::policy::Millis;
use crate::policy::outlier::Evidence;
use crate::policy::silence::{Wait, test_patience_ms};
use crate::proxy::http1::request::Request;
use crate::proxy::stats::Retry;
use crate::proxy::upstream::{InFlight, Upstream};
use crate::proxy::worker_routes::WorkerRoutes;
use crate::shortage;
use crate::telemetry::limited;

/// Longest time that the first events of a stream are held back when none has content. A role
/// arrives together with its first token; an earlier event is a sign of life, and a client behind
/// other proxies may need it.
const HOLD_MAX: Duration = Duration::from_secs(2);

/// Longest time, in ms, after which the end of a kept connection still means that the engine had
/// closed it while it was idle: its word of that may be one long round trip away. An engine that
/// ends a connection later has had the request.
const STALE_MAX_MS: Millis = 400;

/// Why an attempt came to no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    ClientGone,
    /// This machine lacks something; that says nothing about the engine.
    Local,
    Refused,
    /// The engine refused a connection right after it had ended the one with the request.
    Died,
    /// The connection was neither made nor refused in time.
    Unreachable,
    Late,
    /// The engine did not pass a test in time.
    TestLate,
    /// The engine has fallen silent, and the request goes elsewhere, which is paid for.
    Moved,
    Unanswered(Unanswered),
    /// A kept connection ended, and the retry budget does not pay for a new one.
    Denied,
}

impl Failure {
    /// What it says about the engine.
    pub(super) fn evidence(self) -> Option<Evidence> {
        match self {
            Self::ClientGone | Self::Local | Self::Moved | Self::Denied => None,
            Self::Refused | Self::Died => Some(Evidence::Refused),
            Self::Unreachable => Some(Evidence::Unreachable),
            Self::Late | Self::TestLate => Some(Evidence::Late),
            Self::Unanswered(Unanswered::Closed | Unanswered::Cut) => Some(Evidence::Closed),
            Self::Unanswered(Unanswered::Malformed(_)) => Some(Evidence::Malformed),
        }
    }

    /// Whether the request may have ended the engine.
    pub(super) fn is_death(self) -> bool {
        matches!(self, Self::Died | Self::Unanswered(Unanswered::Closed | Unanswered::Cut))
    }

    /// As what another attempt counts; `None` where there is none.
    pub(super) fn retry(self) -> Option<Retry> {
        match self {
            Self::ClientGone | Self::Late | Self::Denied => None,
            Self::TestLate | Self::Moved => Some(Retry::Late),
            Self::Local | Self::Refused | Self::Unreachable => Some(Retry::ConnectFailed),
            Self::Unanswered(Unanswered::Malformed(_)) => Some(Retry::BadResponse),
            Self::Died | Self::Unanswered(_) => Some(Retry::Reset),
        }
    }
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        Self::Unanswered(unanswered)
    }
}

/// An answer that can be begun. Its head for the client is in the session's `out`.
pub(super) struct Answer<S: Stream> {
    pub(super) upstream: Upstream<S>,
    pub(super) head: AnswerHead,
    /// The first step after the head and the bytes that were held back.
    pub(super) step: Step,
    pub(super) before: Before,
    /// When sending of the request began, since the data plane started.
    pub(super) sent_at: Duration,
    pub(super) upload: Upload,
    /// The engine's connection has ended.
    pub(super) is_end: bool,
}

/// The request on its way to an engine. It goes on while the answer comes, because an engine may
/// begin to answer before it has read the whole body.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Upload {
    sent: usize,
    state: UploadState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UploadState {
    #[default]
    Sending,
    Whole,
    /// The engine takes no more. Its answer may have arrived before, so the attempt goes on.
    Failed,
}

impl Upload {
    /// Sends as much of `parts` as the connection takes now; true when it took anything.
    pub(super) fn poll<S: Stream>(&mut self, cx: &mut Context<'_>, upstream: &mut Connection<S>, parts: [&[u8]; 4]) -> bool {
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

    pub(super) fn is_whole(self) -> bool {
        self.state == UploadState::Whole
    }
}

/// A request on its way to one engine.
pub(super) struct Attempt<'a, 'w, S: Stream> {
    pub(super) session: &'a mut Session<'w, S>,
    pub(super) flight: &'a InFlight<S>,
    pub(super) request: &'a Request,
    pub(super) body: BodyAt,
    /// The engine keeps something of a request that has reached it, so it must not be sent twice.
    pub(super) is_stateful: bool,
    pub(super) resend: &'a Resend<'a, S>,
    pub(super) wait: Wait,
    /// It tests an engine that is ejected, and must not take long.
    pub(super) is_test: bool,
    /// Other engines, if the request may go to one of them.
    pub(super) others: Option<Others<'a, S>>,
}

/// The other engines of a request.
pub(super) struct Others<'a, S: Stream> {
    pub(super) routes: &'a WorkerRoutes<S>,
    pub(super) class: ClassId,
    pub(super) tried: &'a [EngineId],
}

impl<S: Stream> Others<'_, S> {
    fn is_any_free(&self) -> bool {
        self.routes.has_other(self.class, self.tried)
    }
}

impl<S: Stream> Attempt<'_, '_, S> {
    /// Sends the request, and waits until its answer can be begun.
    pub(super) async fn run(mut self) -> Result<Answer<S>, Failure> {
        let (worker, engine) = (self.session.worker, &self.flight.engine);
        // When a pooled connection ends, it is unknown whether the engine has seen the request. A
        // stateful request therefore takes a new one.
        let kept = if self.is_stateful { None } else { engine.checkout(worker.timers.coarse(), &worker.config) };
        let is_replay = kept.is_some();
        if let Some(upstream) = kept {
            let begun = worker.timers.coarse();
            match self.converse(upstream).await {
                // Most likely the engine closed the idle connection and has not seen the request.
                // It may have, and may have worked on it, so a new connection has its price.
                Err(Failure::Unanswered(Unanswered::Closed)) if worker.timers.now() - begun <= STALE_MAX_MS => {
                    if !self.resend.is_paid(Retry::StaleConnection) {
                        engine.counters.resets.add(1);
                        return Err(Failure::Denied);
                    }
                    engine.counters.replays.add(1);
                }
                outcome => {
                    self.count_reset(&outcome);
                    return outcome;
                }
            }
        }
        let upstream = match self.connect().await {
            Err(Failure::Refused) if is_replay => return Err(Failure::Died),
            connected => connected?,
        };
        let outcome = self.converse(upstream).await;
        self.count_reset(&outcome);
        outcome
    }

    fn count_reset(&self, outcome: &Result<Answer<S>, Failure>) {
        if let Err(Failure::Unanswered(Unanswered::Closed | Unanswered::Cut)) = outcome {
            self.flight.engine.counters.resets.add(1);
        }
    }

    async fn connect(&mut self) -> Result<Upstream<S>, Failure> {
        let (worker, engine) = (self.session.worker, &self.flight.engine);
        let Session { client, deadline, .. } = &mut *self.session;
        deadline.set(worker.config.connect_timeout);
        let outcome = match Connection::<S>::connect(engine.address) {
            Ok(mut upstream) => match until(client, deadline, self.body.held, |cx, _| upstream.poll_connected(cx)).await {
                Ok(connected) => connected.map(|()| Box::new(upstream)),
                Err(Interrupted::ClientGone) => return Err(Failure::ClientGone),
                Err(Interrupted::Late) => Err(io::ErrorKind::TimedOut.into()),
            },
            Err(error) => Err(error),
        };
        match outcome {
            Ok(upstream) => {
                engine.counters.connects.add(1);
                Ok(upstream)
            }
            Err(error) if shortage::is_ours(&error) => {
                limited!(warn, engine = %engine.name, %error, "failed to connect for want of local resources");
                Err(Failure::Local)
            }
            Err(error) => {
                limited!(debug, engine = %engine.name, %error, "failed to connect");
                engine.counters.connect_failures.add(1);
                Err(if error.kind() == io::ErrorKind::TimedOut { Failure::Unreachable } else { Failure::Refused })
            }
        }
    }

    /// Sends the request on a connection, and waits until there is something of an answer to pass
    /// on. Leaves the head for the client in `out`, followed by what the first step put there.
    async fn converse(&mut self, mut upstream: Upstream<S>) -> Result<Answer<S>, Failure> {
        let (request, body, flight) = (self.request, self.body, self.flight);
        let engine = &flight.engine;
        let Session { client, deadline, worker, wire, body: own, out, .. } = &mut *self.session;
        deadline.set(worker.config.ttft_timeout);
        let sent_at = worker.timers.elapsed();
        let now = worker.timers.coarse();
        let waiting = flight.wait(Wait { since: now, ..self.wait });
        let mut others = self.others.as_ref().filter(|others| others.is_any_free());
        let patience = Duration::from_millis(test_patience_ms(self.wait) as u64);
        let is_short = self.is_test && others.is_some() && patience < worker.config.ttft_timeout;
        if is_short {
            deadline.set(patience);
        }
        let closes = !request.keep_alive || worker.is_stopping.get();
        let fields = OwnFields { engine: &engine.name, request_id: &wire[request.request_id.clone()], closes };
        let mut opening = Opening::new(request, fields);
        let (mut upload, mut is_end, mut is_holding) = (Upload::default(), false, false);
        out.clear();
        let opened = until(client, deadline, body.held, |cx, client| {
            upload.poll(cx, &mut upstream, body.parts(wire, client, own));
            loop {
                // Input that has arrived is read before more is awaited.
                let advanced = match opening.advance(upstream.input(), is_end, out) {
                    Ok(advanced) => advanced,
                    Err(unanswered) => return Poll::Ready(Err(Failure::Unanswered(unanswered))),
                };
                upstream.consume(advanced.consumed);
                if let Some(begun) = advanced.begun {
                    return Poll::Ready(Ok(begun));
                }
                if opening.is_holding() && !std::mem::replace(&mut is_holding, true) {
                    deadline.set(worker.config.ttft_timeout.min(HOLD_MAX));
                }
                match upstream.poll_fill(cx) {
                    Poll::Ready(Ok(1..)) => {}
                    Poll::Ready(Ok(_)) => is_end = true,
                    // A reset is no regular end, not even of a body that lasts until the
                    // connection's end.
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Failure::Unanswered(opening.ended(upstream.input())))),
                    Poll::Pending if !engine.judged.is_silent() || flight.is_test() => return Poll::Pending,
                    // The engine has fallen silent; who cannot go elsewhere waits on.
                    Poll::Pending => {
                        return match others.filter(|others| others.is_any_free()) {
                            Some(_) if self.resend.is_paid(Retry::Late) => Poll::Ready(Err(Failure::Moved)),
                            Some(_) => {
                                others = None;
                                Poll::Pending
                            }
                            None => Poll::Pending,
                        };
                    }
                }
            }
        })
        .await;
        drop(waiting);
        let step = match opened {
            Ok(opened) => opened?,
            Err(Interrupted::Late) if is_short && !opening.is_holding() => return Err(Failure::TestLate),
            Err(Interrupted::Late) => opening.flush().ok_or(Failure::Late)?,
            Err(Interrupted::ClientGone) => return Err(Failure::ClientGone),
        };
        let (head, before) = (*opening.head(), opening.before);
        Ok(Answer { upstream, head, step, before, sent_at, upload, is_end })
    }
}
