//! Request heads: from what a client sent to what an engine gets.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::head::{self, ConnectionOptions, Field, Framing, HeadError, Length, classify, put_field};
use super::target::{Target, is_host};
use crate::policy::affinity::{self, Source};

/// Fields a head may have at most, whatever the configuration says: what the parser has room for.
pub const FIELDS_CAP: usize = 256;
/// Longest request id that is kept, in bytes.
const REQUEST_ID_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Other,
}

/// A request head, understood. Ranges point into the wire image that was written along with it.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub target: Range<usize>,
    /// 0 or 1, of HTTP/1.x.
    pub minor: u8,
    pub length: Length,
    /// Whether the client wants to use the connection again.
    pub keep_alive: bool,
    pub expects_continue: bool,
    /// Whether the client says that it has sent it before.
    pub is_repeated: bool,
    /// Whether the body is compressed, so that it cannot be looked at.
    pub is_encoded: bool,
    pub request_id: Range<usize>,
    /// Value of the last Content-Type field; empty without one.
    pub content_type: Range<usize>,
    /// Affinity key of the session header.
    pub session: Option<u64>,
    /// `x-ilb-class`, as it came.
    pub class: Option<String>,
    /// `x-ilb-require`, as it came; several fields are joined by commas.
    pub require: Option<String>,
}

/// Parses a whole head, as delimited by [`head::find_end`], and writes to `wire` the head an engine gets: request line and end-to-end
/// fields in their order, the client's address and this hop, without framing and without the empty line.
///
/// `client` is the client's IP address as text. `new_id` appends a request id where the client sent no valid one.
///
/// Errors: the head is not HTTP/1.x, or breaks one of its rules.
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

/// The head with its HTTP/1.2 to 1.9 turned into HTTP/1.1.
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
    // This hop and the version in which the client speaks to it, as every gateway has to say (RFC 9110 7.6.3).
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
            is_encoded: false,
            request_id: 0..0,
            content_type: 0..0,
            session: None,
            class: None,
            require: None,
        })
    }

    /// Takes what the fields say, and notes in `fields` what each of them is.
    fn read_fields(&mut self, headers: &[httparse::Header<'_>], fields: &mut [Field]) -> Result<(), HeadError> {
        let (mut framing, mut connection) = (Framing::default(), ConnectionOptions::default());
        let (mut hosts, mut has_id) = (0, false);
        for (header, field) in headers.iter().zip(fields) {
            *field = classify(header.name);
            match *field {
                Field::Other | Field::Hop | Field::ForwardedFor | Field::ContentType | Field::Ilb | Field::Shadow => {}
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

    /// Appends the fields that are passed on as they are, and the host.
    fn put_fields(&mut self, headers: &[httparse::Header<'_>], fields: &[Field], authority: Option<&str>, wire: &mut Vec<u8>) {
        let mut has_host = false;
        for (header, field) in headers.iter().zip(fields) {
            match field {
                Field::Other | Field::ContentEncoding | Field::SessionId | Field::RetryCount => {
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
            // HTTP/1.0 may lack it; HTTP/1.1, which the engine is spoken to in, may not.
            put_field(wire, "host", authority.unwrap_or_default().as_bytes());
        }
    }
}

/// Appends the addresses that the request has come through, the client's last.
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

/// Ends a wire image: the body's framing, rebuilt, and the empty line.
pub fn finish(wire: &mut Vec<u8>, length: Length, body: usize) {
    if length != Length::Unknown {
        wire.extend_from_slice(b"content-length: ");
        head::put_decimal(wire, body as u64);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b"\r\n");
}

fn is_request_id(value: &[u8]) -> bool {
    (1..=REQUEST_ID_MAX).contains(&value.len()) && value.iter().all(|b| (0x21..=0x7e).contains(b))
}

fn own_field(value: &[u8]) -> Result<String, HeadError> {
    String::from_utf8(value.to_vec()).map_err(|_| HeadError::Syntax("x-ilb field is not text"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(head: &str) -> Result<(Request, String), HeadError> {
        let mut wire = Vec::new();
        let request = parse(head.as_bytes(), 128, "192.0.2.7", &mut wire, |out| out.extend_from_slice(b"new-id"))?;
        Ok((request, String::from_utf8(wire).unwrap()))
    }

    fn check(fields: &str, expected: Result<Length, HeadError>) {
        let head = format!("POST /v1/x HTTP/1.1\r\n{fields}\r\n");
        assert_eq!(parsed(&head).map(|(r, _)| r.length), expected, "{fields:?}");
    }

    #[test]
    fn framing() {
        use HeadError as E;
        check("host: a\r\n", Ok(Length::Unknown));
        check("host: a\r\ncontent-length: 0\r\n", Ok(Length::Known(0)));
        check("host: a\r\ncontent-length: 12\r\n", Ok(Length::Known(12)));
        check("host: a\r\ntransfer-encoding: Chunked\r\n", Ok(Length::Chunked));
        check("host: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n", Err(E::LengthAndEncoding));
        for bad in ["+1", "-1", "0x1", "1, 1", "1 1", "", "1a", "9999999999999999999"] {
            check(&format!("host: a\r\ncontent-length: {bad}\r\n"), Err(E::ContentLength));
        }
        check("host: a\r\ncontent-length: 1\r\ncontent-length: 1\r\n", Err(E::ContentLength));
        for bad in ["gzip", "gzip, chunked", "chunked, chunked", "identity", "", "chunked;a=b", "xchunked"] {
            check(&format!("host: a\r\ntransfer-encoding: {bad}\r\n"), Err(E::Encoding));
        }
        check("host: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", Err(E::Encoding));
        check("", Err(E::Host));
        check("host: a\r\nhost: a\r\n", Err(E::Host));
        check("host: a b\r\n", Err(E::Host));
        check("host: a/b\r\n", Err(E::Host));
        check("host: \r\n", Ok(Length::Unknown));
        for bad in ["[::1", "a:b:c", "a:99999", ":80", "a%zz"] {
            check(&format!("host: {bad}\r\n"), Err(E::Host));
        }
        check("host: a\r\nexpect: 200-ok\r\n", Err(E::Expectation));
    }

    #[test]
    fn syntax() {
        for bad in [
            "host: a\r\nx : y\r\n",
            "host: a\r\nx: y\r\n z\r\n",
            "host: a\r\nx: a\rb\r\n",
            "host: a\r\nx: a\0b\r\n",
            "host: a\r\n: y\r\n",
            "host: a\r\nx\r\n",
            "host: a\r\nx(: y\r\n",
        ] {
            assert!(matches!(parsed(&format!("GET / HTTP/1.1\r\n{bad}\r\n")), Err(HeadError::Syntax(_))), "{bad:?}");
        }
        for bad in ["GET  / HTTP/1.1", "GET / HTTP/1.x", "GET / HTTP/11", "GET / http/1.1", "GET /", "G\u{7f}T / HTTP/1.1", ""] {
            assert!(matches!(parsed(&format!("{bad}\r\nhost: a\r\n\r\n")), Err(HeadError::Syntax(_))), "{bad:?}");
        }
        for bad in ["GET /a#b", "GET /\u{e9}", "GET a", "GET *", "GET //a", "GET ftp://a/"] {
            let error = parsed(&format!("{bad} HTTP/1.1\r\nhost: a\r\n\r\n")).map(drop);
            assert!(matches!(error, Err(HeadError::Target(_) | HeadError::Syntax(_))), "{bad:?}: {error:?}");
        }
        assert!(matches!(parsed("CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n"), Err(HeadError::Method)));
        assert!(matches!(parsed("CONNECT /a HTTP/1.1\r\nhost: a\r\n\r\n"), Err(HeadError::Method)));
        assert!(matches!(parsed("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"), Err(HeadError::EncodingInOldVersion)));
        assert!(parsed("\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n").is_ok());
    }

    #[test]
    fn fields_pass_in_order_and_hop_by_hop_ones_do_not() {
        let (request, wire) = parsed(
            "POST /v1/x?q=1 HTTP/1.1\r\nHost: a:80\r\nX-B: 1\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nx-a:  2 \r\nX-B: 3\r\n\
             Keep-Alive: 5\r\nTE: trailers\r\nAuthorization: Bearer k\r\nx-ilb-class: c\r\nx-ilb-require: a=b\r\nx-ilb-require: c=d\r\n\
             Upgrade: websocket\r\nHTTP2-Settings: AA\r\nX-Session-ID: s\r\nexpect: 100-continue\r\nContent-Length: 3\r\n\
             Proxy-Connection: x\r\nProxy-Authorization: Basic x\r\nContent-Type: a/b\r\nsession_id: 7\r\n\r\n",
        )
        .unwrap();
        assert_eq!(
            wire,
            "POST /v1/x?q=1 HTTP/1.1\r\nHost: a:80\r\nX-B: 1\r\nX-Hop: 1\r\nx-a: 2\r\nX-B: 3\r\nAuthorization: Bearer k\r\n\
             X-Session-ID: s\r\nContent-Type: a/b\r\nsession_id: 7\r\nx-forwarded-for: 192.0.2.7\r\nvia: 1.1 ilb\r\nx-request-id: new-id\r\n"
        );
        assert_eq!(&wire[request.target], "/v1/x?q=1");
        assert_eq!(&wire[request.request_id], "new-id");
        assert_eq!(&wire[request.content_type], "a/b");
        assert_eq!((request.class.as_deref(), request.require.as_deref()), (Some("c"), Some("a=b,c=d")));
        assert!(!request.keep_alive && request.expects_continue && request.session.is_some() && !request.is_encoded);
    }

    #[test]
    fn nomination_strips_no_field_that_carries_identity_or_trace() {
        for name in
            ["x-api-key", "x-forwarded-proto", "traceparent", "forwarded", "x-real-ip", "authorization", "cookie", "x-tenant"]
        {
            let (_, wire) =
                parsed(&format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close, {name}\r\n{name}: v\r\n\r\n")).unwrap();
            assert!(wire.contains(&format!("{name}: v\r\n")) && !wire.contains("connection:"), "{wire}");
        }
    }

    #[test]
    fn the_address_in_front_is_added_to_those_that_came_and_every_hop_is_named() {
        let (_, wire) = parsed(
            "GET / HTTP/1.0\r\nX-Forwarded-For: 10.0.0.1, 10.0.0.2\r\nVia: 1.1 edge\r\nx_forwarded_for: 6.6.6.6\r\n\
             x-forwarded-for: \r\nx-forwarded-for: 10.0.0.3\r\n\r\n",
        )
        .unwrap();
        assert_eq!(
            wire,
            "GET / HTTP/1.1\r\nVia: 1.1 edge\r\nhost: \r\nx-forwarded-for: 10.0.0.1, 10.0.0.2, 10.0.0.3, 192.0.2.7\r\n\
             via: 1.0 ilb\r\nx-request-id: new-id\r\n"
        );
    }

    #[test]
    fn the_host_is_the_one_that_an_absolute_target_names() {
        for (head, host) in [
            ("GET http://b:81/v1/x HTTP/1.1\r\nHost: a\r\n\r\n", "GET /v1/x HTTP/1.1\r\nHost: b:81\r\n"),
            ("GET http://b/v1/x HTTP/1.0\r\n\r\n", "GET /v1/x HTTP/1.1\r\nhost: b\r\n"),
        ] {
            let (request, wire) = parsed(head).unwrap();
            assert!(wire.starts_with(host), "{wire}");
            assert_eq!(&wire[request.target], "/v1/x");
        }
        assert!(matches!(parsed("GET http://b/ HTTP/1.1\r\n\r\n"), Err(HeadError::Host)));
    }

    #[test]
    fn a_higher_minor_version_is_read_and_sent_on_as_1_1_and_another_major_one_refused() {
        for version in ["1.2", "1.9"] {
            for before in ["", "\r\n"] {
                let (request, wire) = parsed(&format!("{before}GET /a HTTP/{version}\r\nhost: a\r\n\r\n")).unwrap();
                assert!(wire.starts_with("GET /a HTTP/1.1\r\n") && request.keep_alive && request.minor == 1, "{wire}");
            }
            assert!(matches!(parsed(&format!("GET /a HTTP/{version}\r\n\r\n")), Err(HeadError::Host)));
        }
        for version in ["0.9", "2.0", "3.1"] {
            assert!(matches!(parsed(&format!("GET /a HTTP/{version}\r\nhost: a\r\n\r\n")), Err(HeadError::Version)));
        }
    }

    #[test]
    fn a_compressed_body_is_told_from_a_plain_one() {
        for (value, is_encoded) in
            [("gzip", true), ("zstd", true), ("gzip, identity", true), ("identity", false), ("Identity", false), ("", false)]
        {
            let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-encoding: {value}\r\n\r\n");
            let (request, wire) = parsed(&head).unwrap();
            assert_eq!(request.is_encoded, is_encoded, "{value}");
            assert!(wire.contains(&format!("content-encoding: {value}\r\n")), "{wire}");
        }
    }

    #[test]
    fn request_ids() {
        let id = |value: &str| {
            let (request, wire) = parsed(&format!("GET / HTTP/1.1\r\nhost: a\r\nX-Request-Id: {value}\r\n\r\n")).unwrap();
            assert_eq!(wire.to_ascii_lowercase().matches("x-request-id").count(), 1);
            wire[request.request_id].to_owned()
        };
        assert_eq!(id("abc-1"), "abc-1");
        assert_eq!(id(&"x".repeat(REQUEST_ID_MAX)), "x".repeat(REQUEST_ID_MAX));
        for bad in [
            String::new(),
            "a b".to_owned(),
            "x".repeat(REQUEST_ID_MAX + 1),
            "\u{e9}".to_owned(),
            "a\r\nx-request-id: b".to_owned(),
        ] {
            assert!(["new-id", "a"].contains(&id(&bad).as_str()), "{bad:?}");
        }
    }

    #[test]
    fn field_count_limit() {
        let head = |n: usize| format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "a: b\r\n".repeat(n - 1));
        assert!(parsed(&head(128)).is_ok());
        assert!(matches!(parsed(&head(129)), Err(HeadError::TooManyFields)));
    }

    proptest! {
        /// Whatever of a damaged head is let through reads the same to the next parser, ours standing for the engine's.
        #[test]
        fn what_is_passed_on_is_read_alike(
            damage in prop::collection::vec((0usize..220, prop::sample::select(&b"\r\n\t :,;\0a0/\x80\"GcC"[..]), 0u8..3), 0..5),
        ) {
            let mut head = b"POST /v1/x HTTP/1.1\r\nhost: a\r\nContent-Length: 12\r\nConnection: x-hop, close\r\nx-hop: 1\r\n\
                transfer-encodinG: chunked\r\nx-a: b\r\nx-session-id: s\r\nTE: trailers\r\n\r\n".to_vec();
            // Half of the heads have one framing, as most do.
            if damage.len() % 2 == 0 {
                head = String::from_utf8(head).unwrap().replace("transfer-encodinG: chunked\r\n", "").into_bytes();
            }
            for (at, byte, kind) in damage {
                let at = at % head.len();
                match kind {
                    0 => head[at] = byte,
                    1 => head.insert(at, byte),
                    _ => drop(head.remove(at)),
                }
            }
            let Ok(Some(end)) = head::find_end(&head, &mut 0, 4096) else { return Ok(()) };
            let mut wire = Vec::new();
            let Ok(request) = parse(&head[..end], 128, "", &mut wire, |out| out.extend_from_slice(b"id")) else { return Ok(()) };
            finish(&mut wire, request.length, 12);
            prop_assert_eq!(head::find_end(&wire, &mut 0, 4096), Ok(Some(wire.len())), "another head hides in this one");
            let mut again = Vec::new();
            let second = parse(&wire, 128, "", &mut again, |_| panic!("the id was lost"));
            let second = second.map_err(|e| TestCaseError::fail(format!("{e} in {:?}", String::from_utf8_lossy(&wire))))?;
            prop_assert_eq!(&wire[request.target.clone()], &again[second.target.clone()]);
            let framed = if request.length == Length::Unknown { Length::Unknown } else { Length::Known(12) };
            prop_assert_eq!(second.length, framed);
            prop_assert_eq!(second.session, request.session);
            finish(&mut again, second.length, 12);
            // But for what every hop adds.
            let fields = |wire: &[u8]| {
                let text = String::from_utf8_lossy(wire).into_owned();
                text.lines().filter(|line| !line.starts_with("via: 1.") && !line.starts_with("x-forwarded-for: ")).collect::<Vec<_>>().join("\n")
            };
            prop_assert_eq!(fields(&wire), fields(&again));
        }
    }
}
