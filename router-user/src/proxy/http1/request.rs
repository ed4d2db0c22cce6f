//! Request heads: from what a client sent to what an engine gets.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::head::{self, Field, Framing, HeadError, Hop, Length, classify, put_field};
use crate::policy::affinity::{self, Source};

/// Fields a head may have at most, whatever the configuration says: what the parser has room for.
pub const FIELDS_CAP: usize = 256;
/// Longest request id that is kept.
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
    pub request_id: Range<usize>,
    /// Affinity key of the session header.
    pub session: Option<u64>,
    /// `x-ilb-class`, as it came.
    pub class: Option<String>,
    /// `x-ilb-require`, as it came; several fields are joined by commas.
    pub require: Option<String>,
}

/// Parses a whole head, as delimited by [`head::find_end`], and writes to `wire` the head an engine gets: request line and end-to-end
/// fields in their order, without framing and without the empty line.
///
/// `new_id` appends a request id where the client sent no valid one.
pub fn parse(
    input: &[u8],
    fields_max: usize,
    wire: &mut Vec<u8>,
    new_id: impl FnOnce(&mut Vec<u8>),
) -> Result<Request, HeadError> {
    let mut storage = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; FIELDS_CAP];
    let mut parsed = httparse::Request::new(&mut []);
    let status = parsed.parse_with_uninit_headers(input, &mut storage[..fields_max.min(FIELDS_CAP)]).map_err(head::syntax)?;
    if status.is_partial() {
        return Err(HeadError::Syntax("no request line"));
    }
    let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(HeadError::Syntax("no request line"));
    };
    check_target(target)?;
    let kind = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        // A tunnel and an echo: neither has a place in front of engines.
        "CONNECT" | "TRACE" => return Err(HeadError::Method),
        _ => Method::Other,
    };

    let mut framing = Framing::default();
    let mut hop = Hop::default();
    let (mut hosts, mut expects_continue) = (0, false);
    let mut fields = [Field::Other; FIELDS_CAP];
    let mut request = Request {
        method: kind,
        target: 0..0,
        minor,
        length: Length::Unknown,
        keep_alive: false,
        expects_continue: false,
        is_repeated: false,
        request_id: 0..0,
        session: None,
        class: None,
        require: None,
    };
    for (header, field) in parsed.headers.iter().zip(&mut fields) {
        *field = classify(header.name);
        match *field {
            Field::Other | Field::Hop | Field::ContentType | Field::Ilb => {}
            Field::Connection => hop.read(header.value)?,
            Field::ContentLength => framing.length(header.value)?,
            Field::TransferEncoding => framing.encoding(header.value),
            // The offer of HTTP/2 that some clients make by default may be passed over (RFC 9110 7.8), and is not passed on.
            Field::Upgrade if header.value.eq_ignore_ascii_case(b"h2c") => {}
            Field::Upgrade => return Err(HeadError::Upgrade),
            Field::Host => {
                hosts += 1;
                check_host(header.value)?;
            }
            Field::Expect if header.value.eq_ignore_ascii_case(b"100-continue") => expects_continue = true,
            Field::Expect => return Err(HeadError::Expectation),
            Field::RequestId if !is_request_id(header.value) || request.request_id.end > 0 => *field = Field::Hop,
            // The range is set when the field is written; for now it only says that there is one.
            Field::RequestId => request.request_id = 0..1,
            Field::SessionId if !header.value.is_empty() => {
                request.session.get_or_insert_with(|| affinity::key(Source::Session, header.value));
            }
            Field::SessionId => {}
            Field::RetryCount => request.is_repeated |= header.value != b"0",
            Field::IlbClass => request.class = Some(own_field(header.value)?),
            Field::IlbRequire => {
                let asked = own_field(header.value)?;
                request.require = Some(request.require.map_or(asked.clone(), |r| format!("{r},{asked}")));
            }
        }
    }
    if hosts > 1 || (hosts == 0 && minor == 1) {
        return Err(HeadError::Host);
    }
    request.length = framing.settle(minor)?;
    request.keep_alive = minor == 1 && !hop.is_close;
    // RFC 9110 10.1.1: an old client cannot know the interim answer.
    request.expects_continue = expects_continue && minor == 1;

    wire.clear();
    wire.reserve(input.len() + 64);
    wire.extend_from_slice(method.as_bytes());
    wire.push(b' ');
    request.target = wire.len()..wire.len() + target.len();
    wire.extend_from_slice(target.as_bytes());
    wire.extend_from_slice(b" HTTP/1.1\r\n");
    let had_id = request.request_id.end > 0;
    for (header, field) in parsed.headers.iter().zip(fields) {
        match field {
            Field::Other | Field::ContentType | Field::Host | Field::SessionId | Field::RetryCount
                if !hop.nominates(header.name) =>
            {
                put_field(wire, header.name, header.value);
            }
            Field::RequestId => {
                put_field(wire, header.name, header.value);
                let end = wire.len() - 2;
                request.request_id = end - header.value.len()..end;
            }
            _ => {}
        }
    }
    if hosts == 0 {
        // HTTP/1.0 may lack it; HTTP/1.1, which the engine is spoken to in, may not.
        wire.extend_from_slice(b"host: \r\n");
    }
    if !had_id {
        wire.extend_from_slice(b"x-request-id: ");
        let start = wire.len();
        new_id(wire);
        request.request_id = start..wire.len();
        wire.extend_from_slice(b"\r\n");
    }
    Ok(request)
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

/// Origin form, or `*`. Visible ASCII without a fragment, which no client sends and parsers disagree about.
fn check_target(target: &str) -> Result<(), HeadError> {
    let is_plain = target.bytes().all(|b| (0x21..=0x7e).contains(&b) && b != b'#' && b != b'\\');
    if is_plain && (target.starts_with('/') || target == "*") { Ok(()) } else { Err(HeadError::Syntax("malformed target")) }
}

fn check_host(value: &[u8]) -> Result<(), HeadError> {
    let is_host = |b: &u8| b.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+;=".contains(b);
    if value.iter().all(is_host) { Ok(()) } else { Err(HeadError::Host) }
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
        let request = parse(head.as_bytes(), 128, &mut wire, |out| out.extend_from_slice(b"new-id"))?;
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
        check("host: a\r\nupgrade: websocket\r\n", Err(E::Upgrade));
        check("host: a\r\nupgrade: h2c, websocket\r\n", Err(E::Upgrade));
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
        for bad in [
            "GET  / HTTP/1.1",
            "GET / HTTP/1.2",
            "GET / HTTP/2.0",
            "GET /a#b HTTP/1.1",
            "GET /\u{e9} HTTP/1.1",
            "GET http://a/ HTTP/1.1",
            "GET a HTTP/1.1",
            "GET /",
            "G\u{7f}T / HTTP/1.1",
            "",
        ] {
            assert!(matches!(parsed(&format!("{bad}\r\nhost: a\r\n\r\n")), Err(HeadError::Syntax(_))), "{bad:?}");
        }
        assert!(matches!(parsed("CONNECT /a HTTP/1.1\r\nhost: a\r\n\r\n"), Err(HeadError::Method)));
        assert!(matches!(parsed("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"), Err(HeadError::EncodingInOldVersion)));
        assert!(parsed("\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n").is_ok());
    }

    #[test]
    fn fields_pass_in_order_and_hop_by_hop_ones_do_not() {
        let (request, wire) = parsed(
            "POST /v1/x?q=1 HTTP/1.1\r\nHost: a:80\r\nX-B: 1\r\nConnection: close, X-Hop, authorization\r\nX-Hop: 1\r\nx-a:  2 \r\nX-B: 3\r\n\
             Keep-Alive: 5\r\nTE: trailers\r\nAuthorization: Bearer k\r\nx-ilb-class: c\r\nx-ilb-require: a=b\r\nx-ilb-require: c=d\r\n\
             Upgrade: h2c\r\nX-Session-ID: s\r\nexpect: 100-continue\r\nContent-Length: 3\r\nProxy-Connection: x\r\n\r\n",
        )
        .unwrap();
        assert_eq!(
            wire,
            "POST /v1/x?q=1 HTTP/1.1\r\nHost: a:80\r\nX-B: 1\r\nx-a: 2\r\nX-B: 3\r\nAuthorization: Bearer k\r\nX-Session-ID: s\r\n\
             x-request-id: new-id\r\n"
        );
        assert_eq!(&wire[request.target], "/v1/x?q=1");
        assert_eq!(&wire[request.request_id], "new-id");
        assert_eq!((request.class.as_deref(), request.require.as_deref()), (Some("c"), Some("a=b,c=d")));
        assert!(!request.keep_alive && request.expects_continue && request.session.is_some());
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
            let Ok(request) = parse(&head[..end], 128, &mut wire, |out| out.extend_from_slice(b"id")) else { return Ok(()) };
            finish(&mut wire, request.length, 12);
            prop_assert_eq!(head::find_end(&wire, &mut 0, 4096), Ok(Some(wire.len())), "another head hides in this one");
            let mut again = Vec::new();
            let second = parse(&wire, 128, &mut again, |_| panic!("the id was lost"));
            let second = second.map_err(|e| TestCaseError::fail(format!("{e} in {:?}", String::from_utf8_lossy(&wire))))?;
            prop_assert_eq!(&wire[request.target.clone()], &again[second.target.clone()]);
            let framed = if request.length == Length::Unknown { Length::Unknown } else { Length::Known(12) };
            prop_assert_eq!(second.length, framed);
            prop_assert_eq!(second.session, request.session);
            finish(&mut again, second.length, 12);
            prop_assert_eq!(wire, again);
        }
    }
}
