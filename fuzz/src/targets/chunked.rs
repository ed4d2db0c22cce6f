//! Chunked bodies: every split decodes alike, the forwarder's output decodes to the same data,
//! httparse reads the same first size.

use router_user::proxy::http1::chunk::{ChunkError, ChunkForwarder, Decoder, LAST_CHUNK, Piece, put_chunk};

use crate::cuts;

/// The decoded data, whether the body has ended, and the bytes that belong to it.
#[derive(Debug, PartialEq)]
struct Decoded {
    data: Vec<u8>,
    is_done: bool,
    used: usize,
    error: Option<ChunkError>,
}

pub(crate) fn run(input: &[u8]) {
    let whole = decode(input, &[input.len()]);
    for ends in cuts::ways(input) {
        assert_eq!(decode(input, &ends), whole, "pieces that end at {ends:?}");
        check_forwarded(input, &ends, &whole);
    }
    check_first_size(input);
    let mut printed = Vec::new();
    for piece in input.chunks(7) {
        put_chunk(&mut printed, piece);
    }
    printed.extend_from_slice(LAST_CHUNK);
    let expected = Decoded { data: input.to_vec(), is_done: true, used: printed.len(), error: None };
    assert_eq!(decode(&printed, &[printed.len()]), expected, "printed chunks decode to what was printed");
}

fn decode(input: &[u8], ends: &[usize]) -> Decoded {
    let mut decoder = Decoder::default();
    let mut decoded = Decoded { data: Vec::new(), is_done: false, used: 0, error: None };
    for &end in ends {
        loop {
            match decoder.step(&input[decoded.used..end]) {
                Ok(Piece::Framing(length)) => decoded.used += length,
                Ok(Piece::Data(length)) => {
                    decoded.data.extend_from_slice(&input[decoded.used..decoded.used + length]);
                    decoded.used += length;
                }
                Ok(Piece::Incomplete | Piece::Done) => break,
                Err(error) => return Decoded { error: Some(error), ..decoded },
            }
        }
    }
    Decoded { is_done: decoder.is_done(), ..decoded }
}

/// What the forwarder sends is whole chunks after every piece, with the data of `whole` and nothing
/// else.
fn check_forwarded(input: &[u8], ends: &[usize], whole: &Decoded) {
    let (mut relay, mut out, mut used) = (ChunkForwarder::default(), Vec::new(), 0);
    for &end in ends {
        let mut copy = Vec::new();
        let Ok(passed) = relay.pass(&input[used..end], &mut copy) else {
            assert!(whole.error.is_some(), "the forwarder refuses what the decoder takes");
            break;
        };
        out.extend_from_slice(&copy);
        out.extend_from_slice(&input[used..used + passed.raw]);
        used += passed.consumed;
        if relay.is_done() {
            break;
        }
    }
    if relay.is_done() {
        assert_eq!(used, whole.used, "bytes that belong to the body");
    } else {
        out.extend_from_slice(LAST_CHUNK);
    }
    let sent = decode(&out, &[out.len()]);
    assert!(sent.is_done && sent.error.is_none() && sent.used == out.len(), "the output is not whole chunks: {sent:?}");
    assert!(whole.data.starts_with(&sent.data), "the output has data of its own");
    if whole.error.is_none() {
        assert_eq!(sent.data, whole.data, "the output lacks data");
    }
    // A chunk of one byte takes six: its size line, the byte and the line end.
    assert!(out.len() <= 6 * input.len() + LAST_CHUNK.len(), "{} bytes out of {}", out.len(), input.len());
}

/// Where the first size line is taken, httparse reads the same size.
fn check_first_size(input: &[u8]) {
    let mut decoder = Decoder::default();
    let Ok(Piece::Framing(line)) = decoder.step(input) else { return };
    let theirs = httparse::parse_chunk_size(input).expect("httparse refuses a size line that was taken");
    let httparse::Status::Complete((length, size)) = theirs else { panic!("httparse wants more than the line that was taken") };
    assert_eq!(length, line);
    let ours = match decoder.step(&input[line..]) {
        Ok(Piece::Data(data)) => data as u64,
        _ => 0,
    };
    assert_eq!(ours, size.min((input.len() - line) as u64), "size of the first chunk");
}
