//! Counts the events of an event stream as its bytes pass, cut anywhere.
//!
//! Source: WHATWG HTML, section 9.2.6 (server-sent events): a line ends in LF, CR or CR LF; a blank
//! line ends an event; a block of lines without `data` is no event.

use super::chunk::{Decoder, Piece};
use super::response::Body;

/// The events of one answer's body.
#[derive(Clone, Copy, Debug)]
pub struct EventCounter {
    /// Takes the chunks apart; `None` where the body is not chunked.
    chunks: Option<Decoder>,
    lines: Lines,
}

impl EventCounter {
    pub fn new(body: Body) -> Self {
        Self { chunks: (body == Body::Chunked).then(Decoder::default), lines: Lines::default() }
    }

    /// Takes bytes of the body as framed by the engine, which follow those of the last call and end
    /// within or between pieces that a chunk decoder takes; the events that end in them.
    pub fn count(&mut self, framed: &[u8]) -> u64 {
        let Some(decoder) = &mut self.chunks else { return self.lines.count(framed) };
        let (mut events, mut at) = (0, 0);
        // Malformed chunks are found by whoever passes them on.
        while let Ok(piece) = decoder.step(&framed[at..]) {
            match piece {
                Piece::Framing(n) => at += n,
                Piece::Data(n) => {
                    events += self.lines.count(&framed[at..at + n]);
                    at += n;
                }
                Piece::Incomplete | Piece::Done => break,
            }
        }
        events
    }
}

/// Where in a line the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// All of the line so far are this many bytes of `data`.
    Name(usize),
    Rest,
}

#[derive(Clone, Copy, Debug)]
struct Lines {
    place: Place,
    /// The last line ended in CR, so that an LF is a part of its end.
    after_cr: bool,
    /// The event at hand has a line of data.
    has_data: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self { place: Place::Name(0), after_cr: false, has_data: false }
    }
}

impl Lines {
    fn count(&mut self, bytes: &[u8]) -> u64 {
        const DATA: &[u8] = b"data";
        let (mut events, mut at) = (0, 0);
        while at < bytes.len() {
            if self.place == Place::Rest {
                let Some(ahead) = memchr::memchr2(b'\n', b'\r', &bytes[at..]) else { break };
                at += ahead;
            }
            let byte = bytes[at];
            at += 1;
            let is_second_half = std::mem::take(&mut self.after_cr) && byte == b'\n';
            match (self.place, byte) {
                _ if is_second_half => {}
                (place, b'\n' | b'\r') => {
                    self.after_cr = byte == b'\r';
                    if place == Place::Name(0) {
                        events += u64::from(std::mem::take(&mut self.has_data));
                    }
                    // A name alone is a field with an empty value.
                    self.has_data |= place == Place::Name(DATA.len());
                    self.place = Place::Name(0);
                }
                (Place::Name(n), _) if DATA.get(n) == Some(&byte) => self.place = Place::Name(n + 1),
                (Place::Name(n), _) => {
                    self.has_data |= n == DATA.len() && byte == b':';
                    self.place = Place::Rest;
                }
                (Place::Rest, _) => {}
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::http1::chunk::put_chunk;

    /// Four events, with comments, other fields and blank lines between them.
    const STREAM: &str =
        ": hello\n\nevent: a\ndata: 1\n\ndata: 2\ndata: 3\n\n\n: ping\n\nid: 7\n\ndatax: no\n\ndata\n\nretry: 1\ndata:[DONE]\n\n";

    /// Bytes of `held` that a decoder takes.
    fn whole_pieces(decoder: &mut Decoder, held: &[u8]) -> usize {
        let mut at = 0;
        while let Piece::Framing(n) | Piece::Data(n) = decoder.step(&held[at..]).unwrap() {
            at += n;
        }
        at
    }

    #[track_caller]
    fn check(stream: &[u8], body: Body, expected: u64, what: &str) {
        for one in 0..=stream.len() {
            for other in [one, (one + 1).min(stream.len()), (one + 7).min(stream.len()), stream.len()] {
                let mut counter = EventCounter::new(body);
                let pieces = [&stream[..one], &stream[one..other], &stream[other..]];
                // As the bytes are passed on: what is no whole piece of a chunk waits for more.
                let (mut held, mut events, mut taken) = (Vec::new(), 0, Decoder::default());
                for piece in pieces {
                    held.extend_from_slice(piece);
                    let at = if body == Body::Chunked { whole_pieces(&mut taken, &held) } else { held.len() };
                    events += counter.count(&held[..at]);
                    held.drain(..at);
                }
                assert_eq!(events, expected, "{what}, cut at {one} and {other}");
            }
        }
    }

    #[test]
    fn events_with_every_line_end_are_counted_at_any_split() {
        for end in ["\n", "\r", "\r\n"] {
            let stream = STREAM.replace('\n', end);
            check(stream.as_bytes(), Body::UntilClose, 4, &format!("{end:?}"));
            check(stream.as_bytes(), Body::Known(stream.len() as u64), 4, &format!("{end:?}"));
        }
        check(b"data: a\r\ndata: b\n\r\ndata: c\r\r", Body::UntilClose, 2, "mixed");
        check(b"data: cut", Body::UntilClose, 0, "an event without its end");
    }

    #[test]
    fn chunk_framing_is_no_part_of_the_stream() {
        for end in ["\n", "\r", "\r\n"] {
            let stream = STREAM.replace('\n', end);
            for size in [1, 2, 3, 10, 1000] {
                let mut framed = Vec::new();
                stream.as_bytes().chunks(size).for_each(|data| put_chunk(&mut framed, data));
                framed.extend_from_slice(b"0\r\n\r\n");
                check(&framed, Body::Chunked, 4, &format!("{end:?} in chunks of {size}"));
            }
        }
    }
}
