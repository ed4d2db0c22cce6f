//! Heads: where they end, which fields concern an intermediary, and what they say about the body.

use std::ops::Range;

use thiserror::Error;

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeadError {
    #[error("head is longer than the limit")]
    TooLong,
    #[error("head has more fields than the limit")]
    TooManyFields,
    #[error("line does not end in CR LF")]
    BareLineFeed,
    #[error("head is not HTTP/1.1: {0}")]
    Syntax(&'static str),
    #[error("content-length is not one decimal number")]
    ContentLength,
    #[error("both content-length and transfer-encoding")]
    LengthAndEncoding,
    #[error("transfer-encoding in HTTP/1.0")]
    EncodingInOldVersion,
    #[error("transfer-encoding other than chunked")]
    Encoding,
    #[error("HTTP version other than 1.x")]
    Version,
    #[error("method is not supported")]
    Method,
    #[error("malformed target: {0}")]
    Target(&'static str),
    #[error("host is missing, repeated or malformed")]
    Host,
    #[error("expectation other than 100-continue")]
    Expectation,
}

/// The length of a head with the empty line that ends it; `None` until that has come.
///
/// `scanned` is how far `input` has been looked at, so that a head in many pieces is read once.
/// Start with 0.
pub fn find_end(input: &[u8], scanned: &mut usize, limit: usize) -> Result<Option<usize>, HeadError> {
    let from = *scanned;
    for at in memchr::memchr_iter(b'\n', &input[from..]) {
        let at = from + at;
        *scanned = at + 1;
        if at == 0 || input[at - 1] != b'\r' {
            return Err(HeadError::BareLineFeed);
        }
        // An empty line: nothing but CR between the last line's end and this one.
        if at >= 3 && input[at - 2] == b'\n' {
            return if at < limit { Ok(Some(at + 1)) } else { Err(HeadError::TooLong) };
        }
    }
    if input.len() >= limit { Err(HeadError::TooLong) } else { Ok(None) }
}

/// The reason that httparse gives, in our words.
pub(super) fn syntax(error: httparse::Error) -> HeadError {
    match error {
        httparse::Error::TooManyHeaders => HeadError::TooManyFields,
        httparse::Error::HeaderName => HeadError::Syntax("malformed field name"),
        httparse::Error::HeaderValue => HeadError::Syntax("malformed field value"),
        httparse::Error::NewLine => HeadError::Syntax("malformed line end"),
        httparse::Error::Status => HeadError::Syntax("malformed status"),
        httparse::Error::Token => HeadError::Syntax("malformed token"),
        httparse::Error::Version => HeadError::Version,
    }
}

/// Fields that mean something to an intermediary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Everything that is passed on.
    Other,
    Connection,
    /// For one hop, and without use here: Keep-Alive, TE, Trailer, Upgrade, HTTP2-Settings,
    /// Proxy-Connection, Proxy-Authorization. An offer to upgrade may be ignored (RFC 9110 7.8),
    /// and is.
    Hop,
    ContentLength,
    TransferEncoding,
    Host,
    Expect,
    RequestId,
    SessionId,
    ContentType,
    ContentEncoding,
    ForwardedFor,
    /// How often the client has sent this request before, as OpenAI's client libraries say.
    RetryCount,
    /// By which a client tells a request that it sends again.
    IdempotencyKey,
    IlbClass,
    IlbRequire,
    /// Other x-ilb-*: ours, so neither a client nor an engine may set them.
    Ilb,
    /// Spelt with an underscore, and to a server that reads `_` as `-` one of the above or one that
    /// carries identity.
    Shadow,
}

/// Tells a field by its name, whatever the case.
pub fn classify(name: &str) -> Field {
    match known(name) {
        Field::Other if memchr::memchr(b'_', name.as_bytes()).is_some() && is_shadow(&name.replace('_', "-")) => Field::Shadow,
        field => field,
    }
}

/// Whether a field's name, underscores replaced, is one that means something to us, or that engines
/// and tiers in front take as proof of who asks. Others pass: agents name fields of their own with
/// underscores, such as `session_id`.
fn is_shadow(name: &str) -> bool {
    const IDENTITY: [&str; 9] =
        ["authorization", "cookie", "api-key", "x-api-key", "forwarded", "x-real-ip", "remote-user", "traceparent", "tracestate"];
    const IDENTITY_PREFIXES: [&str; 2] = ["x-forwarded-", "x-auth-"];
    let begins = |prefix: &str| name.get(..prefix.len()).is_some_and(|front| front.eq_ignore_ascii_case(prefix));
    !matches!(known(name), Field::Other | Field::IdempotencyKey)
        || IDENTITY.iter().any(|field| field.eq_ignore_ascii_case(name))
        || IDENTITY_PREFIXES.into_iter().any(begins)
}

fn known(name: &str) -> Field {
    // Most names come in the case that is written here.
    let is = |known: &str| name == known || name.eq_ignore_ascii_case(known);
    // Length and first letter leave one candidate or two: most names cost no comparison.
    match (name.len(), name.as_bytes().first().map_or(0, u8::to_ascii_lowercase)) {
        (4, b'h') if is("host") => Field::Host,
        (6, b'e') if is("expect") => Field::Expect,
        (10, b'c') if is("connection") => Field::Connection,
        (12, b'c') if is("content-type") => Field::ContentType,
        (14, b'c') if is("content-length") => Field::ContentLength,
        (16, b'c') if is("content-encoding") => Field::ContentEncoding,
        (17, b't') if is("transfer-encoding") => Field::TransferEncoding,
        (11, b'x') if is("x-ilb-class") => Field::IlbClass,
        (13, b'x') if is("x-ilb-require") => Field::IlbRequire,
        (12, b'x') if is("x-request-id") => Field::RequestId,
        (12, b'x') if is("x-session-id") => Field::SessionId,
        (15, b'i') if is("idempotency-key") => Field::IdempotencyKey,
        (15, b'x') if is("x-forwarded-for") => Field::ForwardedFor,
        (23, b'x') if is("x-stainless-retry-count") => Field::RetryCount,
        (7.., b'x') if name.as_bytes()[..6].eq_ignore_ascii_case(b"x-ilb-") => Field::Ilb,
        (2, b't') if is("te") => Field::Hop,
        (7, b't') if is("trailer") => Field::Hop,
        (7, b'u') if is("upgrade") => Field::Hop,
        (10, b'k') if is("keep-alive") => Field::Hop,
        (14, b'h') if is("http2-settings") => Field::Hop,
        (16, b'p') if is("proxy-connection") => Field::Hop,
        (19, b'p') if is("proxy-authorization") => Field::Hop,
        _ => Field::Other,
    }
}

/// The framing fields of one head.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Framing {
    length: Option<u64>,
    encoding: Option<bool>,
}

impl Framing {
    pub(super) fn length(&mut self, value: &[u8]) -> Result<(), HeadError> {
        // RFC 9110 8.6 allows repeated equal values. Only request smuggling needs them.
        if self.length.is_some() || value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
            return Err(HeadError::ContentLength);
        }
        self.length = Some(value.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')));
        Ok(())
    }

    pub(super) fn encoding(&mut self, value: &[u8]) {
        let is_chunked = self.encoding.is_none() && value.eq_ignore_ascii_case(b"chunked");
        self.encoding = Some(is_chunked);
    }

    /// The framing, for a message of HTTP/1.`minor`.
    pub(super) fn settle(self, minor: u8) -> Result<Length, HeadError> {
        match (self.length, self.encoding) {
            (Some(_), Some(_)) => Err(HeadError::LengthAndEncoding),
            (_, Some(_)) if minor == 0 => Err(HeadError::EncodingInOldVersion),
            (_, Some(false)) => Err(HeadError::Encoding),
            (_, Some(true)) => Ok(Length::Chunked),
            (Some(n), None) => Ok(Length::Known(n)),
            (None, None) => Ok(Length::Unknown),
        }
    }
}

/// How a message announces the end of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Known(u64),
    Chunked,
    /// Not at all: a request has no body then, and a response ends with its connection.
    Unknown,
}

/// The options of a Connection field that are acted on.
///
/// RFC 9110 7.6.1 has an intermediary remove every field that Connection names. Here only fields
/// known as hop-by-hop are removed, named or not: a client could otherwise strip the identity,
/// address or trace that a tier in front has set, and no list of such fields is ever complete.
/// nginx and HAProxy do the same.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionOptions {
    pub(super) is_close: bool,
    pub(super) is_keep_alive: bool,
}

impl ConnectionOptions {
    pub(super) fn read(&mut self, value: &[u8]) {
        for option in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
            self.is_close |= option.eq_ignore_ascii_case(b"close");
            self.is_keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }
}

/// Appends `name: value CR LF`; the value's place in `out`.
pub(super) fn put_field(out: &mut Vec<u8>, name: &str, value: &[u8]) -> Range<usize> {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    let start = out.len();
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    start..start + value.len()
}

/// Appends a number in decimal.
pub fn put_decimal(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_at_any_split() {
        let head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\nrest";
        for split in 0..head.len() {
            let mut scanned = 0;
            let first = find_end(&head[..split], &mut scanned, 1000).unwrap();
            assert_eq!(first, (split >= 27).then_some(27));
            if first.is_none() {
                assert_eq!(find_end(head, &mut scanned, 1000), Ok(Some(27)), "split at {split}");
            }
        }
    }

    #[test]
    fn limits_and_bare_line_feeds() {
        let head = b"GET / HTTP/1.1\r\n\r\n";
        assert_eq!(find_end(head, &mut 0, head.len()), Ok(Some(head.len())));
        assert_eq!(find_end(head, &mut 0, head.len() - 1), Err(HeadError::TooLong));
        assert_eq!(find_end(b"GET / HTTP", &mut 0, 10), Err(HeadError::TooLong));
        for bad in [&b"\nGET"[..], b"GET / HTTP/1.1\n\n", b"GET / HTTP/1.1\r\na: b\n\r\n", b"GET / HTTP/1.1\r\n\n"] {
            assert_eq!(find_end(bad, &mut 0, 1000), Err(HeadError::BareLineFeed), "{bad:?}");
        }
    }

    #[test]
    fn names_with_underscores_that_shadow_framing_or_identity_are_told_from_harmless_ones() {
        for shadow in [
            "transfer_encoding",
            "TRANSFER_ENCODING",
            "content_length",
            "content_type",
            "X_Ilb_Class",
            "x-ilb_engine",
            "X_Request_Id",
            "x_session-id",
            "proxy_connection",
            "x_forwarded_for",
            "X-Forwarded_Proto",
            "X_Real_IP",
            "x_api_key",
            "api_key",
            "remote_user",
        ] {
            assert_eq!(classify(shadow), Field::Shadow, "{shadow}");
        }
        for harmless in ["session_id", "conversation_id", "x_custom", "_", "host_", "openai-organization", "authorization"] {
            assert_eq!(classify(harmless), Field::Other, "{harmless}");
        }
    }

    #[test]
    fn decimal() {
        for n in [0, 7, 10, 65_535, u64::MAX] {
            let mut out = Vec::new();
            put_decimal(&mut out, n);
            assert_eq!(out, n.to_string().as_bytes());
        }
    }
}
