//! Message bodies.

use bytes::{Buf, BytesMut};

use super::HttpError;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// Takes the payload of one body out of a stream of bytes that may be cut anywhere.
#[derive(Debug)]
pub struct BodyDecoder {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Length(u64),
    UntilClose,
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailer,
    Done,
}

/// Longest chunk size line or trailer field accepted.
const MAX_LINE_BYTES: usize = 8 * 1024;

impl BodyDecoder {
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::ChunkSize,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state }
    }

    /// Moves what belongs to the body from `input` to the end of `payload`, framing removed. True
    /// when the body has ended; what is left in `input` then belongs to the next message.
    pub fn decode(&mut self, input: &mut BytesMut, payload: &mut BytesMut) -> Result<bool, HttpError> {
        loop {
            self.state = match self.state {
                State::Done => return Ok(true),
                _ if input.is_empty() => return Ok(false),
                State::UntilClose => {
                    payload.extend_from_slice(input);
                    input.clear();
                    State::UntilClose
                }
                State::Length(left) => match take(left, input, payload) {
                    0 => State::Done,
                    left => State::Length(left),
                },
                State::ChunkData(left) => match take(left, input, payload) {
                    0 => State::ChunkEnd,
                    left => State::ChunkData(left),
                },
                State::ChunkEnd => {
                    if !b"\r\n".starts_with(&input[..input.len().min(2)]) {
                        return Err(HttpError::ChunkEnd);
                    }
                    if input.len() < 2 {
                        return Ok(false);
                    }
                    input.advance(2);
                    State::ChunkSize
                }
                State::ChunkSize => {
                    let Some(line) = line(input)? else { return Ok(false) };
                    let digits = line[..].split(|&b| b == b';').next().unwrap_or_default().trim_ascii_end();
                    let size = std::str::from_utf8(digits)
                        .ok()
                        .filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()))
                        .and_then(|text| u64::from_str_radix(text, 16).ok())
                        .ok_or_else(|| HttpError::ChunkSize { found: String::from_utf8_lossy(&line).into_owned() })?;
                    if size == 0 { State::Trailer } else { State::ChunkData(size) }
                }
                State::Trailer => match line(input)? {
                    None => return Ok(false),
                    Some(field) if field.is_empty() => State::Done,
                    Some(_) => State::Trailer,
                },
            };
        }
    }

    /// Handles the peer's close: the end of the body, or [`HttpError::Cut`].
    pub fn close(&self) -> Result<(), HttpError> {
        match self.state {
            State::Done | State::UntilClose => Ok(()),
            _ => Err(HttpError::Cut),
        }
    }
}

/// Moves at most `left` bytes and returns how many are still to come.
fn take(left: u64, input: &mut BytesMut, payload: &mut BytesMut) -> u64 {
    let here = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
    payload.extend_from_slice(&input[..here]);
    input.advance(here);
    left - here as u64
}

/// Takes one line off the front, without its end; `None` when it is not complete yet.
fn line(input: &mut BytesMut) -> Result<Option<BytesMut>, HttpError> {
    match memchr::memchr(b'\n', input) {
        Some(end) if end > 0 && input[end - 1] == b'\r' => {
            let mut line = input.split_to(end + 1);
            line.truncate(end - 1);
            Ok(Some(line))
        }
        None if input.len() <= MAX_LINE_BYTES => Ok(None),
        _ => Err(HttpError::ChunkSize { found: String::from_utf8_lossy(&input[..input.len().min(40)]).into_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_body_reads_alike_however_it_is_cut() {
        let wire = b"4\r\nWiki\r\n6;name=value\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\nTrailer: x\r\n\r\nNEXT";
        for cut in 0..wire.len() {
            let mut decoder = BodyDecoder::new(Framing::Chunked);
            let (mut input, mut payload) = (BytesMut::new(), BytesMut::new());
            let mut is_done = false;
            for part in [&wire[..cut], &wire[cut..]] {
                input.extend_from_slice(part);
                is_done = decoder.decode(&mut input, &mut payload).expect("well formed");
            }
            assert!(is_done, "cut at {cut}");
            assert_eq!(&payload[..], b"Wikipedia in \r\n\r\nchunks.", "cut at {cut}");
            assert_eq!(&input[..], b"NEXT", "cut at {cut}");
        }
    }

    #[test]
    fn a_cut_body_is_told_from_a_whole_one() {
        let check = |framing: Framing, wire: &[u8], is_whole: bool| {
            let mut decoder = BodyDecoder::new(framing);
            decoder.decode(&mut BytesMut::from(wire), &mut BytesMut::new()).expect("well formed");
            assert_eq!(decoder.close().is_ok(), is_whole, "{framing:?} {:?}", String::from_utf8_lossy(wire));
        };
        check(Framing::Length(3), b"abc", true);
        check(Framing::Length(3), b"ab", false);
        check(Framing::Chunked, b"1\r\na\r\n0\r\n\r\n", true);
        check(Framing::Chunked, b"1\r\na\r\n0\r\n", false);
        check(Framing::Chunked, b"1\r\na\r\n", false);
        check(Framing::UntilClose, b"abc", true);
    }

    #[test]
    fn bad_chunks_are_refused() {
        for wire in [&b"x\r\n"[..], b"-1\r\n", b"1\nab", b"1\r\naXX", b"11111111111111111\r\n"] {
            let mut decoder = BodyDecoder::new(Framing::Chunked);
            let result = decoder.decode(&mut BytesMut::from(wire), &mut BytesMut::new());
            assert!(result.is_err(), "{:?} was accepted", String::from_utf8_lossy(wire));
        }
    }
}
