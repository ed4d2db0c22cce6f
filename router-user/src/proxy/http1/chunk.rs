//! Chunked bodies: a decoder, and a relay whose output can be ended after every step.

use thiserror::Error;

use super::head::HeadError;

/// Bytes of a chunk's size line: 16 digits, an extension of at most 256 bytes, which nobody uses,
/// and the line end.
const SIZE_LINE_MAX: usize = 16 + 256 + 2;
/// Bytes of all trailer lines together. Trailers are read and dropped.
const TRAILERS_MAX: usize = 8 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChunkError {
    #[error("malformed chunk size")]
    Size,
    #[error("chunk size line is longer than {SIZE_LINE_MAX} bytes")]
    SizeLine,
    #[error("chunk data does not end in CR LF")]
    DataEnd,
    #[error("malformed or too long trailers")]
    Trailers,
}

impl From<ChunkError> for HeadError {
    fn from(_: ChunkError) -> Self {
        Self::Syntax("malformed chunk")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a size line.
    Size,
    /// Inside data, with this many bytes to come.
    Data(u64),
    /// After data, before its CR LF.
    DataEnd,
    /// After the last chunk and this many bytes of trailers.
    Trailers(usize),
    Done,
}

/// Decodes one chunked body, one piece at a time. The caller keeps an incomplete piece until the
/// rest of it has come.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    state: State,
    /// An extension or a trailer has been seen. Neither is passed on.
    has_extras: bool,
}

/// The piece at the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// This many bytes of framing.
    Framing(usize),
    /// This many bytes of data.
    Data(usize),
    /// No whole piece: more input is needed.
    Incomplete,
    /// The body has ended.
    Done,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { state: State::Size, has_extras: false }
    }
}

impl Decoder {
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes the next piece of `input`, which starts where the last piece ended.
    pub fn step(&mut self, input: &[u8]) -> Result<Piece, ChunkError> {
        match self.state {
            State::Size => {
                let Some((size, line, has_extension)) = size_line(input)? else { return Ok(Piece::Incomplete) };
                self.has_extras |= has_extension;
                self.state = if size == 0 { State::Trailers(0) } else { State::Data(size) };
                Ok(Piece::Framing(line))
            }
            State::Data(left) => {
                let n = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                if n == 0 {
                    return Ok(Piece::Incomplete);
                }
                let left = left - n as u64;
                self.state = if left == 0 { State::DataEnd } else { State::Data(left) };
                Ok(Piece::Data(n))
            }
            State::DataEnd => match input {
                [b'\r', b'\n', ..] => {
                    self.state = State::Size;
                    Ok(Piece::Framing(2))
                }
                [] | [b'\r'] => Ok(Piece::Incomplete),
                _ => Err(ChunkError::DataEnd),
            },
            State::Trailers(seen) => {
                let Some(line_feed) = memchr::memchr(b'\n', input) else {
                    let is_within = seen + input.len() <= TRAILERS_MAX;
                    return if is_within { Ok(Piece::Incomplete) } else { Err(ChunkError::Trailers) };
                };
                let (line, seen) = (&input[..=line_feed], seen + line_feed + 1);
                if seen > TRAILERS_MAX || !is_trailer(line) {
                    return Err(ChunkError::Trailers);
                }
                let is_last = line == b"\r\n";
                self.has_extras |= !is_last;
                self.state = if is_last { State::Done } else { State::Trailers(seen) };
                Ok(Piece::Framing(line.len()))
            }
            State::Done => Ok(Piece::Done),
        }
    }
}

/// Whether a line is a trailer (a field name and a colon, CR only before the final LF) or the empty
/// line that ends them.
fn is_trailer(line: &[u8]) -> bool {
    let Some(content) = line.strip_suffix(b"\r\n") else { return false };
    if content.is_empty() {
        return true;
    }
    let Some(colon) = memchr::memchr(b':', content) else { return false };
    let is_token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    colon > 0 && content[..colon].iter().all(is_token) && !content.iter().any(|&b| b == b'\r' || b == 0)
}

/// Reads a size line: size, length of the line, whether it has an extension. `None` until it is
/// whole.
fn size_line(input: &[u8]) -> Result<Option<(u64, usize, bool)>, ChunkError> {
    let mut size = 0u64;
    let mut digits = 0;
    for &byte in input {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => break,
        };
        digits += 1;
        if digits > 16 {
            return Err(ChunkError::Size);
        }
        size = size << 4 | u64::from(digit);
    }
    // A size that a signed 64-bit length cannot hold is an attack on some other parser.
    if size > i64::MAX as u64 || (digits == 0 && !input.is_empty()) {
        return Err(ChunkError::Size);
    }
    match &input[digits..] {
        [] | [b'\r'] => Ok(None),
        [b'\r', b'\n', ..] => Ok(Some((size, digits + 2, false))),
        [b';', ..] => {
            let line = &input[..input.len().min(SIZE_LINE_MAX)];
            let Some(line_feed) = memchr::memchr(b'\n', line) else {
                return if line.len() < SIZE_LINE_MAX { Ok(None) } else { Err(ChunkError::SizeLine) };
            };
            // One CR, and only before the LF.
            if memchr::memchr(b'\r', line) == Some(line_feed - 1) {
                Ok(Some((size, line_feed + 1, true)))
            } else {
                Err(ChunkError::Size)
            }
        }
        _ => Err(ChunkError::Size),
    }
}

/// Passes a chunked body on as a chunked body.
///
/// After each step the output ends between two chunks, so that an error event can be added when the
/// input breaks. Input that ends between two chunks, which is how engines send events, is passed as
/// it is, without a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkForwarder {
    decoder: Decoder,
}

/// The bytes to send for one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Passed {
    /// Bytes at the front of the input that are sent unchanged, after the copy.
    pub raw: usize,
    /// Bytes of the input that are used.
    pub consumed: usize,
    /// The body has ended, its last chunk included.
    pub is_done: bool,
}

impl ChunkForwarder {
    pub fn is_done(&self) -> bool {
        self.decoder.is_done()
    }

    /// Takes the whole pieces of `input`. Rewritten bytes are appended to `copy`.
    ///
    /// Errors: some of the input is malformed. Nothing of this read is passed.
    pub fn pass(&mut self, input: &[u8], copy: &mut Vec<u8>) -> Result<Passed, ChunkError> {
        let mut passed = Passed::default();
        if self.decoder.state == State::Size {
            passed.raw = self.pass_whole(input)?;
            passed.consumed = passed.raw;
            passed.is_done = self.is_done();
            if passed.consumed == input.len() || passed.is_done {
                return Ok(passed);
            }
        }
        // A part of a chunk follows. It becomes a chunk of its own, and the whole chunks before it
        // are copied in front of it.
        let mark = copy.len();
        copy.extend_from_slice(&input[..passed.raw]);
        let mut has_data = false;
        loop {
            match self.decoder.step(&input[passed.consumed..])? {
                Piece::Framing(n) => passed.consumed += n,
                Piece::Data(n) => {
                    put_chunk(copy, &input[passed.consumed..passed.consumed + n]);
                    (passed.consumed, has_data) = (passed.consumed + n, true);
                }
                Piece::Incomplete => break,
                Piece::Done => {
                    copy.extend_from_slice(LAST_CHUNK);
                    (passed.is_done, has_data) = (true, true);
                    break;
                }
            }
        }
        if has_data {
            passed.raw = 0;
        } else {
            // Only framing followed, so that the whole chunks can go as they are.
            copy.truncate(mark);
        }
        Ok(passed)
    }

    /// Length of the whole chunks without extras at the front of `input`, in bytes.
    fn pass_whole(&mut self, input: &[u8]) -> Result<usize, ChunkError> {
        let mut whole = 0;
        loop {
            let mut ahead = self.decoder;
            let mut at = whole;
            // One chunk: size line, data and its end, or the last chunk with the empty line.
            loop {
                match ahead.step(&input[at..])? {
                    Piece::Framing(n) | Piece::Data(n) => at += n,
                    Piece::Incomplete => return Ok(whole),
                    Piece::Done => return Ok(whole),
                }
                if ahead.has_extras {
                    return Ok(whole);
                }
                if matches!(ahead.state, State::Size | State::Done) {
                    break;
                }
            }
            (self.decoder, whole) = (ahead, at);
            if self.decoder.is_done() {
                return Ok(whole);
            }
        }
    }
}

/// The chunk that ends a body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Appends the size line of a chunk.
pub fn put_size_line(out: &mut Vec<u8>, size: usize) {
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(b"0123456789abcdef"[size >> (4 * place) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a whole chunk.
pub fn put_chunk(out: &mut Vec<u8>, data: &[u8]) {
    put_size_line(out, data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes `input` given in pieces that end at `cuts`.
    fn decode(input: &[u8], cuts: &[usize]) -> Result<(Vec<u8>, bool), ChunkError> {
        let (mut decoder, mut data, mut at) = (Decoder::default(), Vec::new(), 0);
        for end in cuts.iter().copied().chain([input.len()]) {
            loop {
                match decoder.step(&input[at..end.max(at)])? {
                    Piece::Framing(n) => at += n,
                    Piece::Data(n) => {
                        data.extend_from_slice(&input[at..at + n]);
                        at += n;
                    }
                    Piece::Incomplete | Piece::Done => break,
                }
            }
        }
        Ok((data, decoder.is_done()))
    }

    /// Relays `input` given in pieces, checking after each that the output so far is whole chunks.
    fn relay(input: &[u8], cuts: &[usize]) -> Result<(Vec<u8>, bool), ChunkError> {
        let (mut relay, mut out, mut at) = (ChunkForwarder::default(), Vec::new(), 0);
        for end in cuts.iter().copied().chain([input.len()]) {
            let piece = &input[at..end.max(at)];
            let mut copy = Vec::new();
            let passed = relay.pass(piece, &mut copy)?;
            out.extend_from_slice(&copy);
            out.extend_from_slice(&piece[..passed.raw]);
            at += passed.consumed;
            let whole = if relay.is_done() { out.clone() } else { [&out, LAST_CHUNK].concat() };
            assert!(decode(&whole, &[]).unwrap().1, "output does not end between chunks: {:?}", String::from_utf8_lossy(&out));
        }
        Ok((out, relay.is_done()))
    }

    #[test]
    fn malformed() {
        for (bad, error) in [
            ("\r\n", ChunkError::Size),
            ("+3\r\nabc\r\n", ChunkError::Size),
            ("0x3\r\n", ChunkError::Size),
            (" 3\r\n", ChunkError::Size),
            ("3 \r\nabc\r\n", ChunkError::Size),
            ("3\nabc\n", ChunkError::Size),
            ("-1\r\n", ChunkError::Size),
            ("00000000000000003\r\n", ChunkError::Size),
            ("ffffffffffffffff\r\n", ChunkError::Size),
            ("3;a\rb\r\nabc\r\n", ChunkError::Size),
            ("3;a\nabc\r\n", ChunkError::Size),
            ("3\r\nabcd\r\n", ChunkError::DataEnd),
            ("3\r\nabc\n", ChunkError::DataEnd),
            ("0\r\nno colon\r\n\r\n", ChunkError::Trailers),
            ("0\r\na: b\n\r\n", ChunkError::Trailers),
            ("0\r\na : b\r\n\r\n", ChunkError::Trailers),
        ] {
            assert_eq!(decode(bad.as_bytes(), &[]), Err(error), "{bad:?}");
            assert_eq!(relay(bad.as_bytes(), &[]), Err(error), "{bad:?}");
        }
        let line = |n: usize| format!("3;{}\r\nabc\r\n0\r\n\r\n", "x".repeat(n));
        assert!(decode(line(SIZE_LINE_MAX - 4).as_bytes(), &[]).is_ok());
        assert_eq!(decode(line(SIZE_LINE_MAX - 3).as_bytes(), &[]), Err(ChunkError::SizeLine));
        let trailers = |n: usize| format!("0\r\na: {}\r\n\r\n", "x".repeat(n));
        assert!(decode(trailers(TRAILERS_MAX - 7).as_bytes(), &[]).is_ok());
        assert_eq!(decode(trailers(TRAILERS_MAX - 6).as_bytes(), &[]), Err(ChunkError::Trailers));
    }

    #[test]
    fn events_pass_uncopied_and_extras_are_dropped() {
        let (mut relay, mut copy) = (ChunkForwarder::default(), Vec::new());
        let event = b"6\r\ndata: \r\n2\r\nab\r\n";
        assert_eq!(relay.pass(event, &mut copy), Ok(Passed { raw: event.len(), consumed: event.len(), is_done: false }));
        assert_eq!(relay.pass(b"0\r\n\r\nHTTP", &mut copy), Ok(Passed { raw: 5, consumed: 5, is_done: true }));
        assert!(copy.is_empty());
        let (out, is_done) = super::tests::relay(b"3;ext=1\r\nabc\r\n0\r\nchecksum: 1\r\n\r\n", &[]).unwrap();
        assert_eq!((out.as_slice(), is_done), (&b"3\r\nabc\r\n0\r\n\r\n"[..], true));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same(
            chunks in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..40), any::<bool>()), 0..6),
            has_trailer in any::<bool>(),
            mut cuts in prop::collection::vec(0usize..400, 0..12),
        ) {
            let mut body = Vec::new();
            for (data, has_extension) in &chunks {
                body.extend_from_slice(format!("{:X}{}\r\n", data.len(), if *has_extension { ";a=b" } else { "" }).as_bytes());
                body.extend_from_slice(data);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(if has_trailer { b"0\r\nx: y\r\n\r\n" } else { b"0\r\n\r\n" });
            let data: Vec<u8> = chunks.iter().flat_map(|(d, _)| d.clone()).collect();
            cuts.iter_mut().for_each(|c| *c = (*c).min(body.len()));
            cuts.sort_unstable();
            prop_assert_eq!(decode(&body, &cuts).unwrap(), (data.clone(), true));
            let (out, is_done) = relay(&body, &cuts).unwrap();
            prop_assert!(is_done);
            prop_assert_eq!(decode(&out, &[]).unwrap(), (data, true));
        }
    }
}
