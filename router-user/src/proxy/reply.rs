//! Answers that are made here and not by an engine. Errors have the shape that OpenAI's clients
//! read, on Anthropic's paths that of Anthropic's.

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;

use super::http1::head::{HeadError, put_decimal};
use super::http1::request::Method;
use super::http1::target::decoded_path;
use super::payload::PayloadError;
use super::stats::Outcome;
use crate::policy::admission::Refusal;

/// Bytes of a name from outside that an error repeats; a longer one is cut.
const ECHO_MAX: usize = 100;

/// A name from outside as an error repeats it.
fn echo(name: &str) -> Cow<'_, str> {
    if name.len() <= ECHO_MAX {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("{}...", &name[..name.floor_char_boundary(ECHO_MAX)]))
}

/// An error for the client.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ErrorReply {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) code: &'static str,
    pub(super) param: Option<&'static str>,
    pub(super) message: String,
    pub(super) retry_after_s: Option<u32>,
    /// Codings of a body that would be accepted, where the request's was not (RFC 9110 12.5.3).
    accept_encoding: Option<&'static str>,
    pub(super) outcome: Outcome,
    /// The connection has to close: the start of the next request is unknown, or is not waited for.
    pub(super) closes: bool,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    error: ErrorObject<'a>,
}

/// The API that a request uses, told by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    OpenAi,
    /// The error object is wrapped in an object of type `error`.
    Anthropic,
}

impl Api {
    pub(super) fn of(target: &[u8]) -> Self {
        let target = std::str::from_utf8(target).unwrap_or_default();
        if decoded_path(target).starts_with("/v1/messages") { Self::Anthropic } else { Self::OpenAi }
    }

    fn json(self, error: ErrorObject<'_>) -> Vec<u8> {
        let body = ErrorBody { kind: (self == Self::Anthropic).then_some("error"), error };
        serde_json::to_vec(&body).expect("texts always serialise")
    }
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

impl ErrorReply {
    fn new(status: u16, kind: &'static str, code: &'static str, outcome: Outcome, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code,
            param: None,
            message: message.into(),
            retry_after_s: None,
            accept_encoding: None,
            outcome,
            closes: false,
        }
    }

    fn invalid(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", code, Outcome::ClientBadRequest, message)
    }

    pub(super) fn head(error: HeadError) -> Self {
        let (status, code, outcome) = match error {
            HeadError::TooLong | HeadError::TooManyFields => (431, "head_too_large", Outcome::HeadTooLarge),
            HeadError::Version => (505, "version_not_supported", Outcome::ClientBadRequest),
            HeadError::Encoding | HeadError::Method => (501, "not_implemented", Outcome::ClientBadRequest),
            HeadError::Expectation => (417, "expectation_failed", Outcome::ClientBadRequest),
            _ => (400, "bad_request", Outcome::ClientBadRequest),
        };
        let message = format!("malformed request: {error}");
        Self { closes: true, ..Self::new(status, "invalid_request_error", code, outcome, message) }
    }

    pub(super) fn body_too_large(limit: usize) -> Self {
        let message = format!("request body is larger than {limit} bytes");
        Self { closes: true, ..Self::new(413, "invalid_request_error", "body_too_large", Outcome::BodyTooLarge, message) }
    }

    pub(super) fn bodies_full() -> Self {
        let message = "too many large requests at one time";
        Self { closes: true, ..Self::new(503, "overloaded_error", "bodies_full", Outcome::BodiesFull, message).later(1) }
    }

    pub(super) fn client_timeout() -> Self {
        let message = "the request did not arrive in time";
        Self { closes: true, ..Self::new(408, "invalid_request_error", "request_timeout", Outcome::ClientTimeout, message) }
    }

    pub(super) fn payload(error: PayloadError) -> Self {
        let param = (error.what == "model is not a string").then_some("model");
        Self { param, ..Self::invalid(400, "invalid_json", error.to_string()) }
    }

    pub(super) fn no_model() -> Self {
        let message = "the request names no model, and there is more than one to choose from";
        Self { param: Some("model"), ..Self::invalid(400, "model_required", message) }
    }

    pub(super) fn unclear_model() -> Self {
        let message = "the form's field model is repeated, not text, or longer than 4096 bytes";
        Self { param: Some("model"), ..Self::invalid(400, "invalid_form", message) }
    }

    pub(super) fn encoded_body() -> Self {
        let message = "the body is compressed, and the model that it names decides where the request goes; send it plain";
        Self { accept_encoding: Some("identity"), ..Self::invalid(415, "unsupported_content_encoding", message) }
    }

    pub(super) fn not_found(path: &str) -> Self {
        Self::invalid(404, "not_found", format!("nothing is served at {:?} without a model", echo(path)))
    }

    pub(super) fn model_not_found(model: &str) -> Self {
        let message = format!("the model {:?} does not exist", echo(model));
        Self {
            param: Some("model"),
            ..Self::new(404, "invalid_request_error", "model_not_found", Outcome::ModelNotFound, message)
        }
    }

    /// `param` is the field of the body that names the object; `None` where the path does.
    pub(super) fn unknown_id(id: &str, param: Option<&'static str>) -> Self {
        let message = format!(
            "this load balancer does not know which engine holds {:?}: it was made before the load balancer started or through \
             another one, or too long ago, or it was deleted",
            echo(id)
        );
        Self { param, ..Self::new(404, "invalid_request_error", "unknown_id", Outcome::UnknownId, message) }
    }

    pub(super) fn holder_gone(id: &str, param: Option<&'static str>, engine: &str) -> Self {
        let message = format!("{:?} was made by engine {engine:?}, which is no longer part of the fleet", echo(id));
        Self { param, ..Self::new(404, "invalid_request_error", "holder_gone", Outcome::HolderGone, message) }
    }

    pub(super) fn holder_not_eligible(id: &str, param: Option<&'static str>, engine: &str, class: &str) -> Self {
        let message = format!("{:?} is held by engine {engine:?}, which may not serve class {class:?} of this request", echo(id));
        Self { param, ..Self::new(404, "invalid_request_error", "holder_not_eligible", Outcome::NoEligibleEngine, message) }
    }

    pub(super) fn holder_full(engine: &str) -> Self {
        let message = format!("engine {engine:?}, which alone holds what the request builds on, has as many requests as it may");
        Self { message, ..Self::engines_full() }
    }

    pub(super) fn holder_unavailable(engine: &str) -> Self {
        let message = format!("engine {engine:?}, which alone holds what the request builds on, could not take the request");
        Self { message, code: "holder_unavailable", ..Self::engines_unavailable(1) }
    }

    pub(super) fn holder_ejected(engine: &str) -> Self {
        let message = format!("engine {engine:?}, which alone holds what the request builds on, is ejected by an operator");
        Self { message, code: "holder_unavailable", ..Self::engines_unavailable(0) }
    }

    pub(super) fn engines_ejected(model: &str) -> Self {
        let message = format!("an operator has ejected every engine of model {:?}", echo(model));
        Self { message, ..Self::engines_unavailable(0) }
    }

    pub(super) fn list_over_engines(path: &str, engines: usize) -> Self {
        let message = format!(
            "each of {engines} engines has a list of its own at {:?}; name one engine by x-ilb-class or x-ilb-require, or ask for \
             each object by its id",
            echo(path)
        );
        Self::invalid(400, "list_over_engines", message)
    }

    pub(super) fn class_not_found(class: &str, model: &str) -> Self {
        Self {
            param: Some("x-ilb-class"),
            ..Self::invalid(400, "class_not_found", format!("model {:?} has no class {:?}", echo(model), echo(class)))
        }
    }

    pub(super) fn malformed_require(part: &str) -> Self {
        let message = format!("x-ilb-require has {:?}; wanted key=value, key=value", echo(part));
        Self { param: Some("x-ilb-require"), ..Self::invalid(400, "malformed_require", message) }
    }

    /// No engine has the tags that were asked for (`key=value, key=value`; may be empty) in the
    /// class, if one was named, of the model.
    pub(super) fn no_eligible_engine(tags: &str, class: Option<&str>, model: &str) -> Self {
        let tags = if tags.is_empty() { String::new() } else { format!("{} for ", echo(tags)) };
        let class = class.map(|class| format!("class {:?} of ", echo(class))).unwrap_or_default();
        let message = format!("no engine satisfies {tags}{class}model {:?}", echo(model));
        Self::new(503, "api_error", "no_eligible_engine", Outcome::NoEligibleEngine, message).later(5)
    }

    pub(super) fn shed_planned() -> Self {
        let message = "demand is above capacity and this conversation has to wait";
        Self::new(429, "rate_limit_error", "shed_planned", Outcome::ShedPlanned, message).later(2)
    }

    pub(super) fn engines_full() -> Self {
        let message = "every engine has as many requests in flight as it may";
        Self::new(503, "overloaded_error", "engines_full", Outcome::EnginesFull, message).later(1)
    }

    /// The request found no place in the queue, or none at an engine in time.
    pub(super) fn no_place(refusal: Refusal, retry_after: Duration) -> Self {
        let (status, kind, outcome, message) = match refusal {
            Refusal::QueueFull => (503, "overloaded_error", Outcome::QueueFull, "the engines are full, and so is the queue"),
            Refusal::Deadline => (
                503,
                "overloaded_error",
                Outcome::QueueDeadline,
                "the engines are full, and the request cannot be served in time",
            ),
            Refusal::OverShare => {
                (429, "rate_limit_error", Outcome::UserOverShare, "the engines are full, and you have the most requests waiting")
            }
        };
        Self::new(status, kind, refusal.name(), outcome, message).later(retry_after.as_secs_f64().round() as u32)
    }

    pub(super) fn engines_unavailable(tried: usize) -> Self {
        let message = format!("none of {tried} engines tried could take the request");
        Self::new(503, "engines_unavailable", "engines_unavailable", Outcome::EnginesUnavailable, message).later(1)
    }

    pub(super) fn bad_response(engine: &str, error: HeadError) -> Self {
        let message = format!("engine {engine:?} gave an answer that is not HTTP: {error}");
        Self::new(502, "api_error", "bad_engine_response", Outcome::EngineBadResponse, message)
    }

    pub(super) fn poison(deaths: usize) -> Self {
        let message = format!("{deaths} engines closed the connection on this request, which goes to no other");
        Self::new(502, "api_error", "poison", Outcome::Poison, message)
    }

    pub(super) fn ttft_timeout(engine: &str) -> Self {
        let message = format!("engine {engine:?} gave no answer in time");
        Self::new(504, "api_error", "ttft_timeout", Outcome::TtftTimeout, message)
    }

    pub(super) fn not_ready() -> Self {
        Self::unready("no routes have been published yet")
    }

    pub(super) fn unready(reason: impl Into<String>) -> Self {
        Self::new(503, "api_error", "not_ready", Outcome::NotReady, reason).later(1)
    }

    /// The worker has as many connections as it may, and none of them is idle.
    pub(super) fn overloaded() -> Self {
        let message = "every connection that this proxy may have is busy";
        Self { closes: true, ..Self::new(503, "overloaded_error", "overloaded", Outcome::Overloaded, message).later(1) }
    }

    /// Whether the request was refused because nobody can tell its model.
    pub(super) fn lacks_model(&self) -> bool {
        matches!(self.code, "not_found" | "model_required")
    }

    fn later(self, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// Appends the answer. `request_id` is empty for a request that could not be read.
    pub(super) fn write(&self, api: Api, method: Method, request_id: &[u8], closes: bool, out: &mut Vec<u8>) {
        let json = api.json(ErrorObject { message: &self.message, kind: self.kind, param: self.param, code: self.code });
        let reply = Reply {
            status: self.status,
            content_type: "application/json",
            body: &json,
            retry_after_s: self.retry_after_s,
            accept_encoding: self.accept_encoding,
        };
        reply.write(method, request_id, closes || self.closes, out);
    }
}

/// The event that ends a broken event stream. The blank line in front of it ends an event that was
/// cut.
pub(super) fn error_event(api: Api, message: &str, code: &str) -> Vec<u8> {
    let json = api.json(ErrorObject { message, kind: "api_error", param: None, code });
    [b"\n\nevent: error\ndata: ", &json[..], b"\n\n"].concat()
}

/// An answer that is made here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply<'a> {
    pub(super) status: u16,
    pub(super) content_type: &'a str,
    pub(super) body: &'a [u8],
    pub(super) retry_after_s: Option<u32>,
    pub(super) accept_encoding: Option<&'a str>,
}

impl<'a> Reply<'a> {
    pub(super) fn ok(content_type: &'a str, body: &'a [u8]) -> Self {
        Self { status: 200, content_type, body, retry_after_s: None, accept_encoding: None }
    }

    /// Appends the answer to a request of `method`.
    pub(super) fn write(&self, method: Method, request_id: &[u8], closes: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        put_decimal(out, u64::from(self.status));
        out.push(b' ');
        out.extend_from_slice(reason(self.status).as_bytes());
        out.extend_from_slice(b"\r\ncontent-type: ");
        out.extend_from_slice(self.content_type.as_bytes());
        out.extend_from_slice(b"\r\ncontent-length: ");
        put_decimal(out, self.body.len() as u64);
        if let Some(seconds) = self.retry_after_s {
            out.extend_from_slice(b"\r\nretry-after: ");
            put_decimal(out, u64::from(seconds));
        }
        if let Some(codings) = self.accept_encoding {
            out.extend_from_slice(b"\r\naccept-encoding: ");
            out.extend_from_slice(codings.as_bytes());
        }
        if !request_id.is_empty() {
            out.extend_from_slice(b"\r\nx-request-id: ");
            out.extend_from_slice(request_id);
        }
        if closes {
            out.extend_from_slice(b"\r\nconnection: close");
        }
        out.extend_from_slice(b"\r\n\r\n");
        if method != Method::Head {
            out.extend_from_slice(self.body);
        }
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        408 => "Request Timeout",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}
