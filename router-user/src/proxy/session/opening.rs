//! The opening of an answer: its head, and the first of its body that can be passed on. No IO.

use super::first_content::FirstContent;
use super::forwarder::{BodyForwarder, Broken, Step};
use crate::proxy::http1::events::EventCounter;
use crate::proxy::http1::head::{self, HeadError};
use crate::proxy::http1::request::{Method, Request};
use crate::proxy::http1::response::{self, Response};

/// Interim answers (1xx) that are read and dropped before an engine is taken for broken. Engines
/// send one at most.
const INTERIM_MAX: usize = 8;
/// Bytes of an engine's head. Not for configuration: engines are the operator's own, and their
/// heads are small.
const ENGINE_HEAD_MAX: usize = 64 << 10;

/// Bytes of a stream without content that are held back; then they are passed on.
const HELD_MAX: usize = 16 << 10;

/// Why an engine gave no answer that could be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// The connection ended before a byte had come.
    Closed,
    /// The connection ended within the head, or before anything of the body could be passed on.
    Cut,
    Malformed(HeadError),
}

/// An answer's head, and how its body is passed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerHead {
    pub(super) response: Response,
    pub(super) forwarder: BodyForwarder,
    /// Has seen the body up to the first step.
    pub(super) events: EventCounter,
    /// The client's connection closes after the answer.
    pub(super) closes: bool,
}

/// What one look at the input came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Advanced {
    /// Bytes of the input that are used up.
    pub(super) consumed: usize,
    /// What the client gets of the input behind the consumed bytes; `None` while more is needed.
    /// Once there is something, [`Opening::head`] has the head.
    pub(super) begun: Option<Step>,
}

/// What the head for the client says beside the engine's own fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnFields<'a> {
    pub(super) engine: &'a str,
    pub(super) request_id: &'a [u8],
    /// The client's connection closes whatever the answer is.
    pub(super) closes: bool,
}

/// Reads an answer as far as its opening.
#[derive(Debug)]
pub(super) struct Opening<'a> {
    method: Method,
    /// HTTP/1.`minor` is what the client speaks.
    minor: u8,
    own: OwnFields<'a>,
    /// How far the head has been searched for its end.
    scanned: usize,
    interim: usize,
    head: Option<AnswerHead>,
    /// Looks for content until there is some; `None` in an answer that is no event stream.
    content: Option<FirstContent>,
    /// What came of the body before the answer began.
    pub(super) before: Before,
}

/// What came of a body before its first content: framing, comments and events without a token.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    /// Bytes as framed by the engine.
    pub(super) bytes: usize,
    /// Bytes that the client gets of them.
    held: usize,
    pub(super) events: u64,
}

impl<'a> Opening<'a> {
    pub(super) fn new(request: &Request, own: OwnFields<'a>) -> Self {
        Self {
            method: request.method,
            minor: request.minor,
            own,
            scanned: 0,
            interim: 0,
            head: None,
            content: None,
            before: Before::default(),
        }
    }

    /// Whether a stream has come of which nothing is content.
    pub(super) fn is_holding(&self) -> bool {
        self.before.held > 0
    }

    /// Begins the answer with what is held back.
    pub(super) fn flush(&self) -> Option<Step> {
        self.is_holding().then(Step::default)
    }

    /// The head of an answer that has begun.
    pub(super) fn head(&self) -> &AnswerHead {
        self.head.as_ref().expect("nothing of a body comes before the head")
    }

    /// Looks at `input`, which starts behind all that was consumed before; `is_end` says that no
    /// more will come. The head for the client is appended to `out`, followed by what is held back
    /// of the body and what the first step puts there.
    pub(super) fn advance(&mut self, input: &[u8], is_end: bool, out: &mut Vec<u8>) -> Result<Advanced, Unanswered> {
        let mut consumed = 0;
        while self.head.is_none() {
            let Some(length) = head::find_end(&input[consumed..], &mut self.scanned, ENGINE_HEAD_MAX)? else {
                return self.more(consumed, &input[consumed..], is_end);
            };
            self.take_head(&input[consumed..consumed + length], out)?;
            consumed += length;
        }
        let head = self.head.as_mut().expect("the loop above ends with a head");
        let (mark, rest) = (out.len(), &input[consumed..]);
        let step = match head.forwarder.step(rest, is_end, out) {
            Ok(step) => step,
            Err(Broken) if is_end => return Err(Unanswered::Cut),
            Err(Broken) => return Err(Unanswered::Malformed(HeadError::Syntax("malformed chunk"))),
        };
        let held = out.len() - mark + step.raw + step.tail.len();
        let framed = &rest[..step.consumed];
        let is_content = self.content.as_mut().is_none_or(|content| content.is_in(framed));
        if step.is_done || (held > 0 && (is_content || self.before.held + held > HELD_MAX)) {
            return Ok(Advanced { consumed, begun: Some(step) });
        }
        out.extend_from_slice(&rest[..step.raw]);
        out.extend_from_slice(step.tail);
        // The counter has to see all of the framing, also where no data is in it.
        self.before.events += head.events.count(framed);
        self.before.bytes += framed.len();
        self.before.held += held;
        consumed += step.consumed;
        self.more(consumed, &input[consumed..], is_end)
    }

    fn more(&self, consumed: usize, rest: &[u8], is_end: bool) -> Result<Advanced, Unanswered> {
        if is_end { Err(self.ended(rest)) } else { Ok(Advanced { consumed, begun: None }) }
    }

    /// What the connection's end means here, when `rest` is what has come and is not used.
    pub(super) fn ended(&self, rest: &[u8]) -> Unanswered {
        let has_begun = self.head.is_some() || self.interim > 0 || !rest.is_empty();
        if has_begun { Unanswered::Cut } else { Unanswered::Closed }
    }

    /// Parses one head, which is dropped when it is an interim one.
    fn take_head(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Unanswered> {
        self.scanned = 0;
        let begin = out.len();
        let response = response::parse(input, self.method, out)?;
        if response.is_interim() {
            // Nobody asked to switch protocols.
            if response.status == 101 || self.interim == INTERIM_MAX {
                return Err(Unanswered::Malformed(HeadError::Syntax("unasked interim answer")));
            }
            out.truncate(begin);
            self.interim += 1;
            return Ok(());
        }
        let forwarder = BodyForwarder::new(response.body, self.minor);
        let closes = forwarder.put_framing(out) || self.own.closes;
        put_own_fields(out, &self.own, closes);
        let events = EventCounter::new(response.body);
        self.content = response.is_event_stream.then(|| FirstContent::new(response.body));
        self.head = Some(AnswerHead { response, forwarder, events, closes });
        Ok(())
    }
}

impl From<HeadError> for Unanswered {
    fn from(error: HeadError) -> Self {
        Self::Malformed(error)
    }
}

/// Ends a head with the fields that are ours.
fn put_own_fields(out: &mut Vec<u8>, own: &OwnFields<'_>, closes: bool) {
    out.extend_from_slice(b"x-ilb-engine: ");
    out.extend_from_slice(own.engine.as_bytes());
    out.extend_from_slice(b"\r\nx-request-id: ");
    out.extend_from_slice(own.request_id);
    out.extend_from_slice(if closes { b"\r\nconnection: close\r\n\r\n" } else { b"\r\n\r\n" });
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "x-ilb-engine: e\r\nx-request-id: id\r\n";

    /// Feeds `bytes` in two reads, and returns what the client got until the answer began, with
    /// what it gets of the first step.
    fn open(bytes: &[u8], split: usize, ends: bool) -> Result<Option<String>, Unanswered> {
        let own = OwnFields { engine: "e", request_id: b"id", closes: false };
        let mut wire = Vec::new();
        let head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let request = crate::proxy::http1::request::parse(head, 10, "", &mut wire, |_| {}).unwrap();
        let (mut opening, mut out, mut held) = (Opening::new(&request, own), Vec::new(), Vec::new());
        let last: &[(&[u8], bool)] = if ends { &[(b"", true)] } else { &[] };
        for &(read, is_end) in [(&bytes[..split], false), (&bytes[split..], false)].iter().chain(last) {
            held.extend_from_slice(read);
            let advanced = opening.advance(&held, is_end, &mut out)?;
            held.drain(..advanced.consumed);
            if let Some(step) = advanced.begun {
                out.extend_from_slice(&held[..step.raw]);
                out.extend_from_slice(step.tail);
                return Ok(Some(String::from_utf8(out).unwrap()));
            }
        }
        Ok(None)
    }

    /// Checks every split of `bytes`: each must come to what the whole comes to, but for how much
    /// of the body the first step has.
    #[track_caller]
    fn check(bytes: &str, ends: bool, expected: Result<Option<&str>, Unanswered>) {
        for split in 0..=bytes.len() {
            let found = open(bytes.as_bytes(), split, ends);
            let is_same = match (&found, &expected) {
                (Ok(Some(found)), Ok(Some(expected))) => {
                    let head = expected.find("\r\n\r\n").unwrap() + 4;
                    found.len() >= head && found[..head] == expected[..head] && (split < bytes.len() || found == expected)
                }
                (Ok(None), Ok(None)) => true,
                (Err(found), Err(expected)) => found == expected,
                _ => false,
            };
            assert!(is_same, "{bytes:?} split at {split}: {found:?}, wanted {expected:?}");
        }
    }

    #[test]
    fn an_answer_begins_with_the_first_bytes_that_can_be_passed_on() {
        let known = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{OWN}\r\n");
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", false, Ok(None));
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab", false, Ok(Some(&(known.clone() + "ab"))));
        let empty = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{OWN}\r\n");
        check("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false, Ok(Some(&empty)));
        let chunked = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n{OWN}\r\n");
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        for nothing in ["", "5", "5\r", "5\r\n", "0\r\n", "0\r\n\r", "0\r\na: b\r\n"] {
            check(&(head.to_owned() + nothing), false, Ok(None));
            check(&(head.to_owned() + nothing), true, Err(Unanswered::Cut));
        }
        check(&(head.to_owned() + "2\r\nab\r\n"), false, Ok(Some(&(chunked.clone() + "2\r\nab\r\n"))));
        check(&(head.to_owned() + "0\r\n\r\n"), false, Ok(Some(&(chunked + "0\r\n\r\n"))));
    }

    #[test]
    fn a_stream_begins_with_its_first_content() {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
        let begun = format!("{head}transfer-encoding: chunked\r\n{OWN}\r\n");
        let head = head.to_owned() + "transfer-encoding: chunked\r\n\r\n";
        let ping = "8\r\n: ping\n\n\r\n";
        for opening in ["", ping, &ping.repeat(3)] {
            check(&(head.clone() + opening), false, Ok(None));
            check(&(head.clone() + opening), true, Err(Unanswered::Cut));
            check(&(head.clone() + opening + "0\r\n\r\n"), false, Ok(Some(&(begun.clone() + opening + "0\r\n\r\n"))));
        }
        let content = "9\r\ndata: x\n\n\r\n";
        check(&(head.clone() + ping + content), false, Ok(Some(&(begun + ping + content))));
        // Nobody holds back more than this.
        let many = head.into_bytes().into_iter().chain(ping.repeat(HELD_MAX / ping.len() + 1).into_bytes());
        assert!(open(&many.collect::<Vec<_>>(), 0, false).unwrap().is_some());
    }

    #[test]
    fn interim_answers_are_dropped_up_to_a_limit() {
        let interim = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";
        let last = "HTTP/1.1 204 No Content\r\n\r\n";
        let expected = format!("HTTP/1.1 204 No Content\r\n{OWN}\r\n");
        check(&(interim.repeat(INTERIM_MAX) + last), false, Ok(Some(&expected)));
        let unasked = Unanswered::Malformed(HeadError::Syntax("unasked interim answer"));
        check(&(interim.repeat(INTERIM_MAX + 1) + last), false, Err(unasked));
        check("HTTP/1.1 101 Switching Protocols\r\n\r\n", false, Err(unasked));
        check(interim, true, Err(Unanswered::Cut));
    }

    #[test]
    fn a_malformed_first_chunk_is_found_before_anything_is_passed_on() {
        let malformed = Unanswered::Malformed(HeadError::Syntax("malformed chunk"));
        for bad in ["zz\r\n", "5 \r\n", "-1\r\n", "5\nhello", "0\r\nno colon\r\n", "fffffffffffffffff\r\n"] {
            check(&format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{bad}"), false, Err(malformed));
        }
    }

    #[test]
    fn ends_before_the_answer_begins() {
        check("", true, Err(Unanswered::Closed));
        check("HTTP/1.1 200", true, Err(Unanswered::Cut));
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", true, Err(Unanswered::Cut));
        let to_chunks = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n{OWN}\r\n0\r\n\r\n");
        check("HTTP/1.1 200 OK\r\n\r\n", true, Ok(Some(&to_chunks)));
    }
}
