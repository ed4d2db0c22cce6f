//! Message heads.

use super::{Framing, HttpError};

/// Longest head accepted: far above what clients and engines send, and small enough to stop a peer
/// that never ends its head.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Most header fields accepted; the usual limit of web servers is 100.
const MAX_FIELDS: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Delete,
    Other,
}

/// The parts of a request head that a server needs before the body.
#[derive(Debug)]
pub struct RequestHead {
    pub method: Method,
    /// The path without its query.
    pub path: String,
    pub framing: Framing,
    pub is_keep_alive: bool,
    pub expects_continue: bool,
}

/// The parts of a response head that a client needs before the body.
#[derive(Debug)]
pub struct ResponseHead {
    pub status: u16,
    pub framing: Framing,
    pub is_keep_alive: bool,
}

struct Connection {
    length: Option<u64>,
    is_chunked: bool,
    is_keep_alive: bool,
    expects_continue: bool,
}

/// Parses a request head at the start of `input`; `None` when it is not complete yet.
///
/// `field` sees every header field. The second value is the head's length in bytes.
pub fn parse_request(input: &[u8], mut field: impl FnMut(&str, &[u8])) -> Result<Option<(RequestHead, usize)>, HttpError> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(length) = request.parse(input)? else {
        return if input.len() > MAX_HEAD_BYTES { Err(HttpError::HeadTooLong) } else { Ok(None) };
    };
    let connection = connection(request.version == Some(1), request.headers, &mut field)?;
    let target = request.path.unwrap_or("/");
    let head = RequestHead {
        method: match request.method {
            Some("GET") => Method::Get,
            Some("POST") => Method::Post,
            Some("DELETE") => Method::Delete,
            _ => Method::Other,
        },
        path: target.split('?').next().unwrap_or(target).to_owned(),
        framing: match (connection.is_chunked, connection.length) {
            (true, _) => Framing::Chunked,
            (false, length) => Framing::Length(length.unwrap_or(0)),
        },
        is_keep_alive: connection.is_keep_alive,
        expects_continue: connection.expects_continue,
    };
    Ok(Some((head, length)))
}

/// Parses a response head at the start of `input`; `None` when it is not complete yet.
///
/// `field` sees every header field. The second value is the head's length in bytes. The request is
/// taken to be no HEAD.
pub fn parse_response(input: &[u8], mut field: impl FnMut(&str, &[u8])) -> Result<Option<(ResponseHead, usize)>, HttpError> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(length) = response.parse(input)? else {
        return if input.len() > MAX_HEAD_BYTES { Err(HttpError::HeadTooLong) } else { Ok(None) };
    };
    let connection = connection(response.version == Some(1), response.headers, &mut field)?;
    let status = response.code.unwrap_or(0);
    let has_body = status >= 200 && status != 204 && status != 304;
    let framing = match (has_body, connection.is_chunked, connection.length) {
        (false, ..) => Framing::Length(0),
        (true, true, _) => Framing::Chunked,
        (true, false, Some(length)) => Framing::Length(length),
        (true, false, None) => Framing::UntilClose,
    };
    let is_keep_alive = connection.is_keep_alive && framing != Framing::UntilClose;
    Ok(Some((ResponseHead { status, framing, is_keep_alive }, length)))
}

fn connection(
    is_http11: bool,
    fields: &[httparse::Header<'_>],
    field: &mut impl FnMut(&str, &[u8]),
) -> Result<Connection, HttpError> {
    let mut found = Connection { length: None, is_chunked: false, is_keep_alive: is_http11, expects_continue: false };
    for header in fields.iter() {
        let (name, value) = (header.name, header.value);
        if name.eq_ignore_ascii_case("content-length") {
            let text = String::from_utf8_lossy(value);
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let number = text.parse().ok().filter(|_| is_number);
            found.length = Some(number.ok_or_else(|| HttpError::ContentLength { found: text.into_owned() })?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            found.is_chunked = value.to_ascii_lowercase().ends_with(b"chunked");
        } else if name.eq_ignore_ascii_case("connection") {
            for token in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
                if token.eq_ignore_ascii_case(b"close") {
                    found.is_keep_alive = false;
                } else if token.eq_ignore_ascii_case(b"keep-alive") {
                    found.is_keep_alive = true;
                }
            }
        } else if name.eq_ignore_ascii_case("expect") {
            found.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
        }
        field(name, value);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_whole_or_not_at_all() {
        let text = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\nConnection: close\r\n\r\n{\"a\":1}";
        let head_length = text.len() - 7;
        for cut in 0..head_length {
            assert!(parse_request(&text[..cut], |_, _| ()).expect("prefix of a good head").is_none(), "cut at {cut}");
        }
        let (head, length) = parse_request(text, |_, _| ()).expect("good").expect("complete");
        assert_eq!((head.method, head.path.as_str(), length), (Method::Post, "/v1/completions", head_length));
        assert_eq!((head.framing, head.is_keep_alive), (Framing::Length(7), false));
    }

    #[test]
    fn framing_follows_the_head() {
        let check = |head: &str, wanted: Framing, is_keep_alive: bool| {
            let (found, _) = parse_response(head.as_bytes(), |_, _| ()).expect("good").expect("complete");
            assert_eq!((found.framing, found.is_keep_alive), (wanted, is_keep_alive), "{head:?}");
        };
        check("HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n", Framing::Length(12), true);
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Framing::Chunked, true);
        check("HTTP/1.1 200 OK\r\n\r\n", Framing::UntilClose, false);
        check("HTTP/1.1 204 No Content\r\n\r\n", Framing::Length(0), true);
        check("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n", Framing::Length(1), false);
        let error = parse_response(b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n", |_, _| ()).expect_err("a sign is no digit");
        assert!(error.to_string().contains("\"+1\""), "{error}");
    }
}
