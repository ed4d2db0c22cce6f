//! Turns the body that an engine sends into the body that a client gets. No IO.

use crate::proxy::http1::chunk::{self, LAST_CHUNK, put_chunk, put_size_line};
use crate::proxy::http1::response::Body;

/// The framing of a body on both sides.
#[derive(Clone, Copy, Debug)]
pub(super) enum BodyForwarder {
    None,
    /// As it comes, with this many bytes left.
    Known(u64),
    /// Chunks to chunks.
    Chunked(chunk::ChunkForwarder),
    /// Chunks to bytes until the connection's end, for a client of HTTP/1.0.
    Unchunked(chunk::Decoder),
    /// Bytes until the connection's end to chunks.
    IntoChunks,
    /// Bytes until the connection's end, on both sides.
    UntilClose,
}

/// The engine's body ended early or was malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// One step's output: first the bytes that were appended to `out`, then `raw` bytes of the input,
/// then `tail`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) raw: usize,
    pub(super) tail: &'static [u8],
    pub(super) consumed: usize,
    pub(super) is_done: bool,
}

impl BodyForwarder {
    pub(super) fn new(body: Body, client_minor: u8) -> Self {
        match body {
            Body::None => Self::None,
            Body::Known(n) => Self::Known(n),
            Body::Chunked if client_minor == 0 => Self::Unchunked(chunk::Decoder::default()),
            Body::Chunked => Self::Chunked(chunk::ChunkForwarder::default()),
            Body::UntilClose if client_minor == 0 => Self::UntilClose,
            Body::UntilClose => Self::IntoChunks,
        }
    }

    /// Appends the field that frames the body for the client. True when the client's connection
    /// must close to end the body.
    pub(super) fn put_framing(&self, out: &mut Vec<u8>) -> bool {
        match self {
            Self::None => false,
            Self::Known(n) => {
                out.extend_from_slice(b"content-length: ");
                crate::proxy::http1::head::put_decimal(out, *n);
                out.extend_from_slice(b"\r\n");
                false
            }
            Self::Chunked(_) | Self::IntoChunks => {
                out.extend_from_slice(b"transfer-encoding: chunked\r\n");
                false
            }
            Self::Unchunked(_) | Self::UntilClose => true,
        }
    }

    /// Takes as much of `input` as can be passed on; `is_end` says that no more will come.
    pub(super) fn step(&mut self, input: &[u8], is_end: bool, out: &mut Vec<u8>) -> Result<Step, Broken> {
        let mut step = Step::default();
        match self {
            Self::None => step.is_done = true,
            Self::Known(left) => {
                step.raw = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                step.consumed = step.raw;
                *left -= step.raw as u64;
                step.is_done = *left == 0;
            }
            Self::Chunked(relay) => {
                let mark = out.len();
                let passed = relay.pass(input, out).map_err(|_| {
                    out.truncate(mark);
                    Broken
                })?;
                step = Step { raw: passed.raw, consumed: passed.consumed, is_done: passed.is_done, tail: b"" };
            }
            Self::Unchunked(decoder) => loop {
                match decoder.step(&input[step.consumed..]).map_err(|_| Broken)? {
                    chunk::Piece::Framing(n) => step.consumed += n,
                    chunk::Piece::Data(n) => {
                        out.extend_from_slice(&input[step.consumed..step.consumed + n]);
                        step.consumed += n;
                    }
                    chunk::Piece::Incomplete => break,
                    chunk::Piece::Done => {
                        step.is_done = true;
                        break;
                    }
                }
            },
            Self::IntoChunks => {
                if !input.is_empty() {
                    put_size_line(out, input.len());
                    step.tail = if is_end { b"\r\n0\r\n\r\n" } else { b"\r\n" };
                } else if is_end {
                    step.tail = LAST_CHUNK;
                }
                (step.raw, step.consumed, step.is_done) = (input.len(), input.len(), is_end);
            }
            Self::UntilClose => (step.raw, step.consumed, step.is_done) = (input.len(), input.len(), is_end),
        }
        if is_end && !step.is_done && step.consumed == 0 { Err(Broken) } else { Ok(step) }
    }

    /// Appends `event`, framed, to a stream that broke off; false where the framing allows no
    /// addition. No end follows on purpose: a cut must not look like a short answer.
    pub(super) fn put_event(&self, event: &[u8], out: &mut Vec<u8>) -> bool {
        match self {
            Self::Chunked(_) | Self::IntoChunks => put_chunk(out, event),
            Self::Unchunked(_) | Self::UntilClose => out.extend_from_slice(event),
            Self::None | Self::Known(_) => return false,
        }
        true
    }

    /// Whether the client gets chunks.
    pub(super) fn is_chunked(&self) -> bool {
        matches!(self, Self::Chunked(_) | Self::IntoChunks)
    }

    /// Whether a regular end of the connection would look like the end of the body.
    pub(super) fn ends_with_connection(&self) -> bool {
        matches!(self, Self::Unchunked(_) | Self::UntilClose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(body: Body, minor: u8, reads: &[&[u8]]) -> Result<Vec<u8>, Broken> {
        let (mut relay, mut sent, mut held) = (BodyForwarder::new(body, minor), Vec::new(), Vec::new());
        for (number, read) in reads.iter().chain([&&b""[..]]).enumerate() {
            held.extend_from_slice(read);
            let mut out = Vec::new();
            let step = relay.step(&held, number == reads.len(), &mut out)?;
            sent.extend_from_slice(&[&out[..], &held[..step.raw], step.tail].concat());
            held.drain(..step.consumed);
            if step.is_done {
                assert!(held.is_empty() || body != Body::UntilClose);
                return Ok(sent);
            }
        }
        Err(Broken)
    }

    #[test]
    fn each_framing_to_each_client() {
        let chunks: [&[u8]; 3] = [b"3\r\nabc\r\n5\r\nde", b"fgh\r", b"\n0\r\n\r\n"];
        let check = |body, minor, reads: &[&[u8]], expected: &str| {
            let sent = run(body, minor, reads).map(|s| String::from_utf8(s).unwrap());
            assert_eq!(sent, Ok(expected.to_owned()), "{body:?} to 1.{minor}");
        };
        check(Body::None, 1, &[], "");
        check(Body::Known(5), 1, &[b"ab", b"cde"], "abcde");
        check(Body::Known(5), 0, &[b"abcde"], "abcde");
        check(Body::Chunked, 1, &chunks, "3\r\nabc\r\n2\r\nde\r\n3\r\nfgh\r\n0\r\n\r\n");
        check(Body::Chunked, 0, &chunks, "abcdefgh");
        check(Body::UntilClose, 1, &[b"ab", b"c"], "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n");
        check(Body::UntilClose, 1, &[], "0\r\n\r\n");
        check(Body::UntilClose, 0, &[b"ab", b"c"], "abc");
    }

    #[test]
    fn early_ends_are_broken() {
        assert_eq!(run(Body::Known(5), 1, &[b"abcd"]), Err(Broken));
        for cut in 0..b"3\r\nabc\r\n0\r\n\r\n".len() {
            assert_eq!(run(Body::Chunked, 1, &[&b"3\r\nabc\r\n0\r\n\r\n"[..cut]]), Err(Broken), "cut at {cut}");
            assert_eq!(run(Body::Chunked, 0, &[&b"3\r\nabc\r\n0\r\n\r\n"[..cut]]), Err(Broken), "cut at {cut}");
        }
        assert_eq!(run(Body::Chunked, 1, &[b"x\r\n"]), Err(Broken));
    }
}
