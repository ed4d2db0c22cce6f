//! Request targets and hosts: which forms are accepted, and what an engine is asked for.
//!
//! Source: RFC 9112 section 3.2, RFC 9110 sections 4.2 and 7.2, RFC 3986.

use std::borrow::Cow;
use std::net::Ipv6Addr;
use std::ops::Range;

use super::head::HeadError;

/// Bytes that a target may have: visible ASCII, but neither `#` nor `\`. Parsers disagree about
/// fragments and backslashes, and no client sends them.
const IN_TARGET: [bool; 256] = bytes_between(0x21, 0x7e, b"#\\");
/// Bytes of a name that need no escape and delimit nothing (RFC 3986 2.3).
const UNRESERVED: [bool; 256] = bytes_between(b'-', b'~', b"/:;<=>?@[\\]^`{|}");

/// A table of the bytes from `first` to `last`, without `except`.
const fn bytes_between(first: u8, last: u8, except: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = first as usize;
    while byte <= last as usize {
        table[byte] = true;
        byte += 1;
    }
    let mut n = 0;
    while n < except.len() {
        table[except[n] as usize] = false;
        n += 1;
    }
    table
}

/// A request target, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    /// Host and port of a target in absolute form. They replace the Host field (RFC 9112 3.2.2).
    pub(super) authority: Option<&'a str>,
    /// Path and query, or `*`. The path may be empty after an authority.
    rest: &'a str,
}

impl<'a> Target<'a> {
    /// Reads a target in origin, absolute or asterisk form. Authority form belongs to CONNECT
    /// alone, which is refused by its method.
    ///
    /// Errors: another form, bytes that are not visible ASCII, a fragment, a malformed host, or a
    /// path that two servers may read in two ways.
    pub(super) fn read(method: &str, text: &'a str) -> Result<Self, HeadError> {
        if is_plain(text) {
            return Ok(Self { authority: None, rest: text });
        }
        if !text.bytes().all(|b| IN_TARGET[usize::from(b)]) {
            return Err(HeadError::Target("it has a byte that a target may not have"));
        }
        // RFC 9112 3.2.4: the asterisk is for OPTIONS alone.
        let target = if text.starts_with('/') || (text == "*" && method == "OPTIONS") {
            Self { authority: None, rest: text }
        } else {
            let after_scheme = strip_scheme(text).ok_or(HeadError::Target("wanted /path or http://host/path"))?;
            let (authority, rest) = after_scheme.split_at(after_scheme.find(['/', '?']).unwrap_or(after_scheme.len()));
            // RFC 9110 4.2.1: an http URI without a host is invalid.
            if authority.is_empty() || !is_host(authority.as_bytes()) {
                return Err(HeadError::Target("its host is malformed"));
            }
            Self { authority: Some(authority), rest: if rest.is_empty() && method == "OPTIONS" { "*" } else { rest } }
        };
        check_path(path_of(target.rest))?;
        Ok(target)
    }

    /// Appends the target in origin form; its place in `out`.
    pub(super) fn put(&self, out: &mut Vec<u8>) -> Range<usize> {
        let start = out.len();
        if !self.rest.starts_with(['/', '*']) {
            out.push(b'/');
        }
        out.extend_from_slice(self.rest.as_bytes());
        start..out.len()
    }
}

fn strip_scheme(text: &str) -> Option<&str> {
    ["http://", "https://"].iter().find_map(|scheme| {
        let (front, rest) = text.split_at_checked(scheme.len())?;
        front.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

/// The path of a target in origin form, percent-decoded, as engines compare it.
pub fn decoded_path(target: &str) -> Cow<'_, str> {
    let path = path_of(target);
    match decode(path) {
        Some(Cow::Owned(bytes)) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        // A path that was let in has no malformed escape.
        Some(Cow::Borrowed(_)) | None => Cow::Borrowed(path),
    }
}

/// Percent-decodes; `None` for an escape that is not two hexadecimal digits.
fn decode(text: &str) -> Option<Cow<'_, [u8]>> {
    let bytes = text.as_bytes();
    let Some(first) = memchr::memchr(b'%', bytes) else { return Some(Cow::Borrowed(bytes)) };
    let digit = |at: usize| bytes.get(at).and_then(|&b| char::from(b).to_digit(16));
    let mut decoded = bytes[..first].to_vec();
    let mut at = first;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'%' {
            decoded.push((digit(at + 1)? << 4 | digit(at + 2)?) as u8);
            at += 3;
        } else {
            decoded.push(byte);
            at += 1;
        }
    }
    Some(Cow::Owned(decoded))
}

/// Whether a target is a path that every server reads alike: the first look, which most targets
/// pass. It has no query and no escape, and no segment that is empty or begins with a dot.
fn is_plain(text: &str) -> bool {
    let mut previous = 0;
    let is_plain = text.bytes().fold(true, |is_plain, byte| {
        let is_odd = previous == b'/' && (byte == b'/' || byte == b'.');
        previous = byte;
        is_plain & (UNRESERVED[usize::from(byte)] | (byte == b'/')) & !is_odd
    });
    is_plain && text.starts_with('/')
}

/// Refuses what a server may resolve before it compares paths and another may not.
fn check_path(path: &str) -> Result<(), HeadError> {
    if path.contains("//") {
        return Err(HeadError::Target("its path has an empty segment (//); a slash within a name is written %2F"));
    }
    let decoded = decode(path).ok_or(HeadError::Target("its path has a malformed percent escape"))?;
    if decoded.iter().any(u8::is_ascii_control) {
        return Err(HeadError::Target("its path has an escaped control character"));
    }
    if decoded.split(|&b| b == b'/').any(|segment| segment == b"." || segment == b"..") {
        return Err(HeadError::Target("its path has a segment . or .."));
    }
    Ok(())
}

/// Whether `value` is a host with or without a port, and the host not empty.
pub(super) fn is_host(value: &[u8]) -> bool {
    if let Some(rest) = value.strip_prefix(b"[") {
        let Some(close) = memchr::memchr(b']', rest) else { return false };
        let is_address = std::str::from_utf8(&rest[..close]).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok());
        return is_address && is_port(&rest[close + 1..]);
    }
    let colon = memchr::memchr(b':', value).unwrap_or(value.len());
    let (name, port) = value.split_at(colon);
    !name.is_empty() && is_name(name) && is_port(port)
}

/// Nothing, or a colon and a port number, which RFC 3986 lets be empty.
fn is_port(text: &[u8]) -> bool {
    let Some((b':', digits)) = text.split_first() else { return text.is_empty() };
    let is_number = digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit);
    is_number && digits.iter().fold(0, |n, d| n * 10 + u32::from(d - b'0')) <= u32::from(u16::MAX)
}

/// A registered name or an IPv4 address. A comma, which RFC 3986 allows, is refused: a list of
/// hosts must not pass for one.
fn is_name(name: &[u8]) -> bool {
    let is_plain = |b: &u8| UNRESERVED[usize::from(*b)];
    let is_allowed = |b: &u8| is_plain(b) || b"%!$&'()*+;=".contains(b);
    name.iter().all(is_plain)
        || (name.iter().all(is_allowed) && std::str::from_utf8(name).is_ok_and(|text| decode(text).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_gives_origin_form_and_the_authority_that_it_names() {
        for (method, text, authority, origin) in [
            ("GET", "/v1/models?x=a/../b%zz", None, "/v1/models?x=a/../b%zz"),
            ("GET", "/", None, "/"),
            ("GET", "/a%2Fb/.well-known/x.y/..z", None, "/a%2Fb/.well-known/x.y/..z"),
            ("POST", "http://llm.example/v1/x?y=z", Some("llm.example"), "/v1/x?y=z"),
            ("POST", "HTTPS://llm.example:8443/v1/x", Some("llm.example:8443"), "/v1/x"),
            ("GET", "http://[::1]:80", Some("[::1]:80"), "/"),
            ("GET", "http://a?x", Some("a"), "/?x"),
            ("OPTIONS", "*", None, "*"),
            ("OPTIONS", "http://a", Some("a"), "*"),
            ("OPTIONS", "http://a?x", Some("a"), "/?x"),
            ("OPTIONS", "/a", None, "/a"),
        ] {
            let target = Target::read(method, text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let mut out = b"GET ".to_vec();
            let range = target.put(&mut out);
            assert_eq!((target.authority, &out[range]), (authority, origin.as_bytes()), "{text}");
        }
    }

    #[test]
    fn targets_that_servers_read_in_different_ways_are_refused() {
        for (method, bad) in [
            ("GET", ""),
            ("GET", "*"),
            ("GET", "a"),
            ("GET", "a:80"),
            ("GET", "ftp://a/"),
            ("GET", "http:/a"),
            ("GET", "http:///a"),
            ("GET", "http://u@a/"),
            ("GET", "http://u:p@a/"),
            ("GET", "http://a:99999/"),
            ("GET", "http://[::1/"),
            ("GET", "http://a,b/"),
            ("GET", "http://a/../b"),
            ("GET", "/a#b"),
            ("GET", "/a\\b"),
            ("GET", "//v1/x"),
            ("GET", "/v1//x"),
            ("GET", "/v1/x//"),
            ("GET", "/."),
            ("GET", "/.."),
            ("GET", "/v1/./x"),
            ("GET", "/v1/../x"),
            ("GET", "/v1/%2e%2E/x"),
            ("GET", "/v1/.%2e"),
            ("GET", "/v1/..%2fx"),
            ("GET", "/v1/x%2F.."),
            ("GET", "/v1/%"),
            ("GET", "/v1/%2"),
            ("GET", "/v1/%zz"),
            ("GET", "/v1/%+1"),
            ("GET", "/v1/%00"),
            ("GET", "/v1/%0d%0a"),
            ("GET", "/v1/%7f"),
        ] {
            assert!(matches!(Target::read(method, bad), Err(HeadError::Target(_))), "{bad:?}");
        }
    }

    #[test]
    fn paths_are_compared_decoded() {
        for (target, path) in [
            ("/v1/models/a?b%20c", "/v1/models/a"),
            ("/v1/models/meta-llama%2fLlama", "/v1/models/meta-llama/Llama"),
            ("/v1/%6dodels/a%20b", "/v1/models/a b"),
            ("/v1/models/mod%C3%A8le", "/v1/models/mod\u{e8}le"),
            ("/v1/models/%ff", "/v1/models/\u{fffd}"),
            ("/v1/models/100%25", "/v1/models/100%"),
            ("*", "*"),
        ] {
            assert_eq!(decoded_path(target), path, "{target}");
        }
    }

    #[test]
    fn hosts() {
        for good in [
            "a",
            "a.b-c_d~",
            "127.0.0.1",
            "127.0.0.1:80",
            "a:",
            "a:0",
            "a:65535",
            "a:00080",
            "[::1]",
            "[::1]:8080",
            "[::ffff:1.2.3.4]",
            "a%20b",
            "xn--bcher-kva.example",
        ] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            ":80",
            "a:b",
            "a:b:c",
            "a:99999",
            "a:65536",
            "a:000080",
            "a:-1",
            "a:+1",
            "a:8 0",
            "[",
            "[::1",
            "[]",
            "[::1]80",
            "[::1]:x",
            "[1.2.3.4]",
            "[fe80::1%25eth0]",
            "[v1.a]",
            "::1",
            "a%zz",
            "a%2",
            "a b",
            "a/b",
            "a,b",
            "u@a",
            "a?b",
            "a#b",
            "a]",
            "\u{e9}",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }
}
