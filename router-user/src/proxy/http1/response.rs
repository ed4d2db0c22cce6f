//! Response heads: read from an engine, rewritten for a client.

use std::mem::MaybeUninit;
use std::time::UNIX_EPOCH;

use super::head::{self, ConnectionOptions, Field, Framing, HeadError, Length, classify, put_field};
use super::request::{FIELDS_CAP, Method};

/// How a response's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The method or the status rules out a body, whatever the fields say.
    None,
    Known(u64),
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub body: Body,
    /// The engine's connection can be used again after the body.
    pub keep_alive: bool,
    pub is_event_stream: bool,
    /// Of a 429 or 503.
    pub retry_after: Option<RetryAfter>,
}

/// The rest that an engine asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    Seconds(u32),
    /// Until a time of the wall clock, in seconds since the Unix epoch, of an answer that does not
    /// say its own time.
    Until(u64),
}

impl RetryAfter {
    /// The length of the rest. `unix_s` is the time by our wall clock, which may be another one
    /// than the engine's.
    pub fn seconds(self, unix_s: impl FnOnce() -> u64) -> u32 {
        match self {
            Self::Seconds(seconds) => seconds,
            Self::Until(end_s) => seconds_between(unix_s(), end_s),
        }
    }
}

impl Response {
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status)
    }
}

/// Parses a whole head and appends the head for a client to `out`: status line and end-to-end
/// fields in their order, without framing and without the empty line.
///
/// Errors: the head is not HTTP/1.x, its status is not 100 to 599, or its framing is ambiguous.
pub fn parse(input: &[u8], method: Method, out: &mut Vec<u8>) -> Result<Response, HeadError> {
    let mut storage = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; FIELDS_CAP];
    let mut parsed = httparse::Response::new(&mut []);
    let status = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut parsed, input, &mut storage)
        .map_err(head::syntax)?;
    let (Some(code), Some(minor), false) = (parsed.code, parsed.version, status.is_partial()) else {
        return Err(HeadError::Syntax("no status line"));
    };
    // RFC 9110 15: other values are invalid, and clients disagree about what they mean.
    if !(100..=599).contains(&code) {
        return Err(HeadError::Syntax("status is not 100 to 599"));
    }
    let mut framing = Framing::default();
    let mut connection = ConnectionOptions::default();
    let mut is_event_stream = false;
    let mut fields = [Field::Other; FIELDS_CAP];
    for (header, field) in parsed.headers.iter().zip(&mut fields) {
        *field = classify(header.name);
        match *field {
            Field::Connection => connection.read(header.value),
            Field::ContentLength => framing.length(header.value)?,
            Field::TransferEncoding => framing.encoding(header.value),
            Field::ContentType => is_event_stream = has_prefix(header.value, b"text/event-stream"),
            _ => {}
        }
    }
    let is_bodiless = method == Method::Head || code < 200 || code == 204 || code == 304;
    let length = framing.settle(minor)?;
    let body = match length {
        _ if is_bodiless => Body::None,
        Length::Known(n) => Body::Known(n),
        Length::Chunked => Body::Chunked,
        Length::Unknown => Body::UntilClose,
    };
    let keep_alive = body != Body::UntilClose && !connection.is_close && (minor == 1 || connection.is_keep_alive);

    out.reserve(input.len() + 128);
    out.extend_from_slice(b"HTTP/1.1 ");
    head::put_decimal(out, u64::from(code));
    out.push(b' ');
    out.extend_from_slice(parsed.reason.unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    for (header, field) in parsed.headers.iter().zip(fields) {
        let passes = match field {
            Field::Connection | Field::Hop | Field::TransferEncoding => false,
            // Replaced by our own.
            Field::RequestId | Field::IlbClass | Field::IlbRequire | Field::Ilb => false,
            // In a response to HEAD, and in a 304, it tells the length that a GET would have got.
            // 1xx and 204 must not have it.
            Field::ContentLength => is_bodiless && code >= 200 && code != 204,
            _ => true,
        };
        if passes {
            put_field(out, header.name, header.value);
        }
    }
    let retry_after = if matches!(code, 429 | 503) { retry_after(parsed.headers) } else { None };
    Ok(Response { status: code, body, keep_alive, is_event_stream, retry_after })
}

/// Reads `Retry-After`: seconds, or a date (RFC 9110 10.2.3), which is compared with the answer's
/// own.
fn retry_after(fields: &[httparse::Header<'_>]) -> Option<RetryAfter> {
    let text = |name: &str| {
        let field = fields.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(field.value).ok().map(str::trim)
    };
    let date_s = |text: &str| Some(httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs());
    let asked = text("retry-after")?;
    if let Ok(seconds) = asked.parse() {
        return Some(RetryAfter::Seconds(seconds));
    }
    let end_s = date_s(asked)?;
    let said_s = text("date").and_then(date_s);
    Some(said_s.map_or(RetryAfter::Until(end_s), |said_s| RetryAfter::Seconds(seconds_between(said_s, end_s))))
}

fn seconds_between(from_s: u64, to_s: u64) -> u32 {
    u32::try_from(to_s.saturating_sub(from_s)).unwrap_or(u32::MAX)
}

fn has_prefix(value: &[u8], prefix: &[u8]) -> bool {
    value.len() >= prefix.len() && value[..prefix.len()].eq_ignore_ascii_case(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: Method, head: &str, expected: Result<(Body, bool), HeadError>) {
        let parsed = parse(head.as_bytes(), method, &mut Vec::new());
        assert_eq!(parsed.map(|r| (r.body, r.keep_alive)), expected, "{head:?}");
    }

    #[test]
    fn body_by_method_status_and_fields() {
        use Method::{Get, Head};
        check(Get, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Ok((Body::Known(5), true)));
        check(Get, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n", Ok((Body::Chunked, false)));
        check(Get, "HTTP/1.1 200 OK\r\n\r\n", Ok((Body::UntilClose, false)));
        check(Get, "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n", Ok((Body::Known(5), false)));
        check(Get, "HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: keep-alive\r\n\r\n", Ok((Body::Known(5), true)));
        check(Head, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Ok((Body::None, true)));
        check(Head, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", Ok((Body::None, true)));
        check(Get, "HTTP/1.1 204 No Content\r\n\r\n", Ok((Body::None, true)));
        check(Get, "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", Ok((Body::None, true)));
        check(Get, "HTTP/1.1 100 Continue\r\n\r\n", Ok((Body::None, true)));
        check(
            Get,
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
            Err(HeadError::LengthAndEncoding),
        );
        check(Get, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", Err(HeadError::ContentLength));
        check(Get, "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", Err(HeadError::Encoding));
        check(Get, "HTTP/1.1 20 OK\r\n\r\n", Err(HeadError::Syntax("malformed status")));
        check(Get, "HTTP/1.1 599 X\r\ncontent-length: 0\r\n\r\n", Ok((Body::Known(0), true)));
        for status in ["000", "001", "099", "600", "999"] {
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
            check(Get, &head, Err(HeadError::Syntax("status is not 100 to 599")));
        }
    }

    #[test]
    fn a_rest_is_asked_for_in_seconds_or_by_a_date_by_an_engine_that_is_busy() {
        use RetryAfter::{Seconds, Until};
        const LAST_SECOND: &str = "Fri, 31 Dec 1999 23:59:59 GMT";
        for (status, value, date, expected) in [
            (429, "7", None, Some(Seconds(7))),
            (503, " 0 ", None, Some(Seconds(0))),
            (500, "7", None, None),
            (200, "7", None, None),
            (429, "-1", None, None),
            (429, "1.5", None, None),
            (503, "99999999999", None, None),
            (503, LAST_SECOND, None, Some(Until(946_684_799))),
            (500, LAST_SECOND, None, None),
            (503, LAST_SECOND, Some("Fri, 31 Dec 1999 23:59:29 GMT"), Some(Seconds(30))),
            (429, "Friday, 31-Dec-99 23:59:59 GMT", Some("Fri Dec 31 23:59:50 1999"), Some(Seconds(9))),
            (429, LAST_SECOND, Some("Sat, 01 Jan 2000 00:00:00 GMT"), Some(Seconds(0))),
            (429, "Fri, 31 Dec 9999 23:59:59 GMT", Some(LAST_SECOND), Some(Seconds(u32::MAX))),
            (429, LAST_SECOND, Some("yesterday"), Some(Until(946_684_799))),
            (429, "Fri, 31 Dec 1999", None, None),
        ] {
            let date = date.map_or(String::new(), |date| format!("date: {date}\r\n"));
            let head = format!("HTTP/1.1 {status} X\r\nretry-after: {value}\r\n{date}content-length: 0\r\n\r\n");
            assert_eq!(parse(head.as_bytes(), Method::Get, &mut Vec::new()).unwrap().retry_after, expected, "{head:?}");
        }
        let lengths = [0, 946_684_790, 946_684_800].map(|unix_s| Until(946_684_799).seconds(|| unix_s));
        assert_eq!(lengths, [946_684_799, 9, 0]);
    }

    #[test]
    fn fields_pass_in_order() {
        let head = "HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nX-A: 1\r\nContent-Length: 2\r\nX-Request-ID: theirs\r\nx-ilb-engine: lie\r\n\
                    Connection: x-hop\r\nKeep-Alive: 5\r\nX-Hop: 1\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nX-A: 2\r\n\r\n";
        let mut out = b"before ".to_vec();
        let response = parse(head.as_bytes(), Method::Post, &mut out).unwrap();
        assert_eq!((response.status, response.is_event_stream, response.retry_after), (429, true, Some(RetryAfter::Seconds(7))));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "before HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nX-A: 1\r\nX-Hop: 1\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nX-A: 2\r\n"
        );
    }
}
