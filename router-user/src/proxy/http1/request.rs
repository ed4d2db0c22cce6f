//! Request heads: read from a client, rewritten for an engine.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::head::{self, ConnectionOptions, Field, Framing, HeadError, Length, classify, put_field};
use super::target::{Target, is_host};
use crate::policy::affinity::{self, Source};

/// Fields that the parser has room for. The configured limit cannot be above it.
pub const FIELDS_CAP: usize = 256;
/// Longest request id that is kept, in bytes.
const REQUEST_ID_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Delete,
    Other,
}

/// A request head. Ranges point into the head for the engine that was written along with it.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub target: Range<usize>,
    /// 0 or 1, of HTTP/1.x.
    pub minor: u8,
    pub length: Length,
    /// The client may use the connection again.
    pub keep_alive: bool,
    pub expects_continue: bool,
    /// The client says that it has sent the request before.
    pub is_repeated: bool,
    /// Hash of the idempotency key.
    pub idempotency_key: Option<u64>,
    /// The body is compressed and cannot be read here.
    pub is_encoded: bool,
    pub request_id: Range<usize>,
    /// Value of the last Content-Type field; empty without one.
    pub content_type: Range<usize>,
    /// Affinity key of the session header.
    pub session: Option<u64>,
    /// Hash of the API key.
    pub credential: Option<u64>,
    /// Time in which the client wants its answer, in ms.
    pub timeout_ms: Option<u64>,
    /// Value of `x-ilb-class`.
    pub class: Option<String>,
    /// Value of `x-ilb-require`; several are joined by commas.
    pub require: Option<String>,
}

/// Parses a whole head, as delimited by [`head::find_end`], and writes the head for an engine to
/// `wire`: request line, end-to-end fields in their order, the client's address and this hop.
/// Framing and the empty line are left to [`finish`].
///
/// `client` is the client's IP address as text. `new_id` appends a request id; it is called when
/// the client sent no valid one.
///
/// Errors: the head is not HTTP/1.x, or breaks one of the rules for it.
pub fn parse(
    input: &[u8],
    fields_max: usize,
    client: &str,
    wire: &mut Vec<u8>,
    new_id: impl Fn(&mut Vec<u8>),
) -> Result<Request, HeadError> {
    match parse_known_version(input, fields_max, client, wire, &new_id) {
        // RFC 9110 2.5: a higher minor version is read as the highest that is known.
        Err(HeadError::Version) => parse_known_version(&as_http_1_1(input)?, fields_max, client, wire, &new_id),
        outcome => outcome,
    }
}

/// A copy of a head of HTTP/1.2 to 1.9 that says HTTP/1.1.
fn as_http_1_1(input: &[u8]) -> Result<Vec<u8>, HeadError> {
    let start = if input.starts_with(b"\r\n") { 2 } else { 0 };
    let end = start + memchr::memchr(b'\r', &input[start..]).unwrap_or(0);
    match &input[start..end] {
        [.., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => {
            let mut input = input.to_vec();
            input[end - 1] = b'1';
            Ok(input)
        }
        [.., b' ', b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => Err(HeadError::Version),
        _ => Err(HeadError::Syntax("malformed request line")),
    }
}

fn parse_known_version(
    input: &[u8],
    fields_max: usize,
    client: &str,
    wire: &mut Vec<u8>,
    new_id: &impl Fn(&mut Vec<u8>),
) -> Result<Request, HeadError> {
    let mut storage = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; FIELDS_CAP];
    let mut parsed = httparse::Request::new(&mut []);
    let status = parsed.parse_with_uninit_headers(input, &mut storage[..fields_max.min(FIELDS_CAP)]).map_err(head::syntax)?;
    let (Some(method), Some(target), Some(minor), false) = (parsed.method, parsed.path, parsed.version, status.is_partial())
    else {
        return Err(HeadError::Syntax("no request line"));
    };
    let mut request = Request::new(method, minor)?;
    let target = Target::read(method, target)?;
    let mut fields = [Field::Other; FIELDS_CAP];
    let fields = &mut fields[..parsed.headers.len()];
    request.read_fields(parsed.headers, fields)?;

    wire.clear();
    wire.reserve(input.len() + 128);
    wire.extend_from_slice(method.as_bytes());
    wire.push(b' ');
    request.target = target.put(wire);
    wire.extend_from_slice(b" HTTP/1.1\r\n");
    request.put_fields(parsed.headers, fields, target.authority, wire);
    put_forwarded_for(parsed.headers, fields, client, wire);
    // This hop and the version in which the client speaks to it, as every gateway has to say (RFC
    // 9110 7.6.3).
    wire.extend_from_slice(if minor == 0 { b"via: 1.0 ilb\r\n" } else { b"via: 1.1 ilb\r\n" });
    if request.request_id.is_empty() {
        wire.extend_from_slice(b"x-request-id: ");
        let start = wire.len();
        new_id(wire);
        request.request_id = start..wire.len();
        wire.extend_from_slice(b"\r\n");
    }
    Ok(request)
}

impl Request {
    fn new(method: &str, minor: u8) -> Result<Self, HeadError> {
        let method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "DELETE" => Method::Delete,
            // A tunnel and an echo: neither has a place in front of engines.
            "CONNECT" | "TRACE" => return Err(HeadError::Method),
            _ => Method::Other,
        };
        Ok(Self {
            method,
            target: 0..0,
            minor,
            length: Length::Unknown,
            keep_alive: false,
            expects_continue: false,
            is_repeated: false,
            idempotency_key: None,
            is_encoded: false,
            request_id: 0..0,
            content_type: 0..0,
            session: None,
            credential: None,
            timeout_ms: None,
            class: None,
            require: None,
        })
    }

    /// Reads the fields, and writes the kind of each into `fields`.
    fn read_fields(&mut self, headers: &[httparse::Header<'_>], fields: &mut [Field]) -> Result<(), HeadError> {
        let (mut framing, mut connection) = (Framing::default(), ConnectionOptions::default());
        let (mut hosts, mut has_id) = (0, false);
        for (header, field) in headers.iter().zip(fields) {
            *field = classify(header.name);
            match *field {
                Field::Other => self.read_other(header),
                Field::Hop | Field::ForwardedFor | Field::ContentType | Field::Ilb | Field::Shadow => {}
                Field::Connection => connection.read(header.value),
                Field::ContentLength => framing.length(header.value)?,
                Field::TransferEncoding => framing.encoding(header.value),
                Field::Host => {
                    hosts += 1;
                    // Empty where the client's target has no host (RFC 9110 7.2).
                    if !header.value.is_empty() && !is_host(header.value) {
                        return Err(HeadError::Host);
                    }
                }
                // RFC 9110 10.1.1: an old client cannot know the interim answer.
                Field::Expect if header.value.eq_ignore_ascii_case(b"100-continue") => self.expects_continue = self.minor > 0,
                Field::Expect => return Err(HeadError::Expectation),
                Field::RequestId if !is_request_id(header.value) || has_id => *field = Field::Hop,
                Field::RequestId => has_id = true,
                Field::SessionId if !header.value.is_empty() => {
                    self.session.get_or_insert_with(|| affinity::key(Source::Session, header.value));
                }
                Field::SessionId => {}
                Field::ContentEncoding => {
                    self.is_encoded |= !header.value.is_empty() && !header.value.eq_ignore_ascii_case(b"identity");
                }
                Field::IdempotencyKey => self.idempotency_key = Some(affinity::key(Source::Idempotency, header.value)),
                Field::RetryCount => self.is_repeated |= header.value != b"0",
                Field::IlbClass => self.class = Some(own_field(header.value)?),
                Field::IlbRequire => {
                    let asked = own_field(header.value)?;
                    self.require = Some(self.require.take().map_or(asked.clone(), |r| format!("{r},{asked}")));
                }
            }
        }
        if hosts > 1 || (hosts == 0 && self.minor > 0) {
            return Err(HeadError::Host);
        }
        self.length = framing.settle(self.minor)?;
        self.keep_alive = self.minor > 0 && !connection.is_close;
        Ok(())
    }

    /// Reads fields that only the queue asks for.
    fn read_other(&mut self, header: &httparse::Header<'_>) {
        let is = |known: &str| header.name.eq_ignore_ascii_case(known);
        match header.name.len() {
            7 if is("api-key") => {}
            9 if is("x-api-key") => {}
            13 if is("authorization") => {}
            20 if is("x-request-timeout-ms") => return self.timeout_ms = timeout_ms(header.value).or(self.timeout_ms),
            30 if is("x-envoy-expected-rq-timeout-ms") => return self.timeout_ms = self.timeout_ms.or(timeout_ms(header.value)),
            _ => return,
        }
        self.credential.get_or_insert_with(|| affinity::key(Source::Credential, header.value));
    }

    /// Appends the end-to-end fields and the host.
    fn put_fields(&mut self, headers: &[httparse::Header<'_>], fields: &[Field], authority: Option<&str>, wire: &mut Vec<u8>) {
        let mut has_host = false;
        for (header, field) in headers.iter().zip(fields) {
            match field {
                Field::Other | Field::ContentEncoding | Field::SessionId | Field::RetryCount | Field::IdempotencyKey => {
                    put_field(wire, header.name, header.value);
                }
                Field::Host => {
                    put_field(wire, header.name, authority.map_or(header.value, str::as_bytes));
                    has_host = true;
                }
                Field::ContentType => self.content_type = put_field(wire, header.name, header.value),
                Field::RequestId => self.request_id = put_field(wire, header.name, header.value),
                _ => {}
            }
        }
        if !has_host {
            // HTTP/1.0 may lack it. The engine is spoken to in HTTP/1.1, which may not.
            put_field(wire, "host", authority.unwrap_or_default().as_bytes());
        }
    }
}

/// Appends the addresses that the request came through, the client's last.
fn put_forwarded_for(headers: &[httparse::Header<'_>], fields: &[Field], client: &str, wire: &mut Vec<u8>) {
    wire.extend_from_slice(b"x-forwarded-for: ");
    let before = headers.iter().zip(fields).filter(|(header, field)| **field == Field::ForwardedFor && !header.value.is_empty());
    for (header, _) in before {
        wire.extend_from_slice(header.value);
        wire.extend_from_slice(b", ");
    }
    wire.extend_from_slice(client.as_bytes());
    wire.extend_from_slice(b"\r\n");
}

/// Ends the head for an engine with the body's length, if it has a body, and the empty line.
pub fn finish(wire: &mut Vec<u8>, length: Length, body: usize) {
    if length != Length::Unknown {
        wire.extend_from_slice(b"content-length: ");
        head::put_decimal(wire, body as u64);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b"\r\n");
}

/// A time above zero; anything else is no wish.
fn timeout_ms(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok().filter(|&ms| ms > 0)
}

fn is_request_id(value: &[u8]) -> bool {
    (1..=REQUEST_ID_MAX).contains(&value.len()) && value.iter().all(|b| (0x21..=0x7e).contains(b))
}

fn own_field(value: &[u8]) -> Result<String, HeadError> {
    String::from_utf8(value.to_vec()).map_err(|_| HeadError::Syntax("x-ilb field is not text"))
}

#[cfg(test)]
mod tests;
