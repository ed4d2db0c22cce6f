//! One streaming client.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use serde::{Deserialize, Serialize, Serializer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::Args;
use crate::clock;
use crate::http::{BodyDecoder, Event, ResponseHead, SseReader, parse_response};
use router_user::rng::Rng;

/// The reason why a request got no whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    Connect,
    /// The connection broke before the head of a reply.
    NoReply,
    Status(u16),
    /// The reply broke off: no end of the body, or no `[DONE]`.
    Cut,
    ErrorEvent,
    Malformed,
    Timeout,
    /// Not sent: too many were open.
    InFlight,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("connect"),
            Self::NoReply => f.write_str("no-reply"),
            Self::Status(status) => write!(f, "status-{status}"),
            Self::Cut => f.write_str("cut"),
            Self::ErrorEvent => f.write_str("error-event"),
            Self::Malformed => f.write_str("malformed"),
            Self::Timeout => f.write_str("timeout"),
            Self::InFlight => f.write_str("in-flight"),
        }
    }
}

impl Serialize for Failure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The result of one request. Times count from when it was due.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) failure: Option<Failure>,
    /// Content has come: a token of a stream, or a byte of an answer in one piece.
    pub(crate) has_begun: bool,
    pub(crate) ttft: Option<Duration>,
    pub(crate) gaps: Vec<Duration>,
    pub(crate) total: Duration,
    pub(crate) engine: Option<String>,
    pub(crate) is_reconnected: bool,
}

/// One request, and how its answer is read.
#[derive(Debug)]
pub(crate) struct Ask {
    bytes: Vec<u8>,
    is_stream: bool,
    timeout: Duration,
}

impl Ask {
    /// `fields` are whole lines of the head, line ends included.
    pub(crate) fn chat(authority: &str, fields: &str, body: &str, is_stream: bool, timeout: Duration) -> Self {
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\n{fields}content-length: {}\r\n\r\n",
            body.len()
        );
        Self { bytes: (head + body).into_bytes(), is_stream, timeout }
    }
}

/// The content of one request.
#[derive(Debug)]
pub(super) struct Prompt {
    session: Option<u64>,
    body: String,
}

impl Prompt {
    pub(super) fn draw(args: &Args, rng: &mut Rng) -> Self {
        let session = (args.sessions > 0).then(|| rng.below(args.sessions));
        let mut text = format!("Conversation {}:", session.unwrap_or_else(|| rng.next_u64()));
        while text.len() < args.prompt_bytes {
            text.push_str(" what comes next?");
        }
        text.truncate(args.prompt_bytes.max(24));
        let body = serde_json::json!({
            "model": args.model,
            "messages": [{ "role": "user", "content": text }],
            "max_tokens": args.max_tokens,
            "stream": !args.no_stream,
        });
        Self { session, body: body.to_string() }
    }

    pub(super) fn ask(&self, authority: &str, args: &Args) -> Ask {
        let session = self.session.map_or_else(String::new, |session| format!("x-session-id: session-{session}\r\n"));
        Ask::chat(authority, &session, &self.body, !args.no_stream, args.timeout)
    }
}

/// Idle connections to one target.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: RefCell<Vec<(TcpStream, Instant)>>,
}

/// Idle connections older than this are not used again: servers commonly close theirs at 5 s.
const MAX_IDLE: Duration = Duration::from_secs(4);

/// The part of a chunk that matters here.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    system_fingerprint: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
}

impl Pool {
    /// Sends one request and reads its answer; every latency counts from `from`.
    pub(crate) async fn exchange(&self, address: SocketAddr, ask: &Ask, from: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        let work = async {
            let (mut stream, is_reused) = self.connection(address).await?;
            match answer(&mut stream, ask, from, &mut outcome).await {
                // A server may close an idle connection at the moment it is used again; then
                // nothing was answered, and a new one is tried.
                Err(Failure::NoReply) if is_reused => {
                    outcome.is_reconnected = true;
                    stream = connect(address).await?;
                    let keep = answer(&mut stream, ask, from, &mut outcome).await?;
                    Ok(keep.then_some(stream))
                }
                result => Ok(result?.then_some(stream)),
            }
        };
        let result = timeout_at(from + ask.timeout, work).await.unwrap_or(Err(Failure::Timeout));
        outcome.total = clock::now() - from;
        match result {
            Ok(Some(stream)) => self.idle.borrow_mut().push((stream, clock::now())),
            Ok(None) => (),
            Err(failure) => outcome.failure = Some(failure),
        }
        outcome
    }

    /// The youngest idle connection, or a new one; true when it was used before.
    async fn connection(&self, address: SocketAddr) -> Result<(TcpStream, bool), Failure> {
        let now = clock::now();
        let idle = {
            let mut idle = self.idle.borrow_mut();
            idle.retain(|(_, since)| now.saturating_duration_since(*since) < MAX_IDLE);
            idle.pop()
        };
        match idle {
            Some((stream, _)) => Ok((stream, true)),
            None => Ok((connect(address).await?, false)),
        }
    }
}

async fn connect(address: SocketAddr) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect(address).await.map_err(|_| Failure::Connect)?;
    stream.set_nodelay(true).map_err(|_| Failure::Connect)?;
    Ok(stream)
}

/// One exchange on one connection; true when the connection can be used again.
async fn answer(stream: &mut TcpStream, ask: &Ask, from: Instant, outcome: &mut Outcome) -> Result<bool, Failure> {
    stream.write_all(&ask.bytes).await.map_err(|_| Failure::NoReply)?;
    let mut input = BytesMut::with_capacity(8 * 1024);
    let head = loop {
        if stream.read_buf(&mut input).await.map_err(|_| Failure::NoReply)? == 0 {
            return Err(Failure::NoReply);
        }
        if let Some(head) = head(&mut input, &mut outcome.engine)? {
            break head;
        }
    };
    let mut decoder = BodyDecoder::new(head.framing);
    let (mut body, mut tokens) = (BytesMut::new(), Tokens::new(from));
    let is_stream = head.status == 200 && ask.is_stream;
    loop {
        let is_whole = decoder.decode(&mut input, &mut body).map_err(|_| Failure::Malformed)?;
        if is_stream {
            tokens.read(&mut body, outcome);
            outcome.has_begun = outcome.ttft.is_some();
        } else {
            outcome.has_begun = head.status == 200 && !body.is_empty();
        }
        if is_whole {
            break;
        }
        match stream.read_buf(&mut input).await {
            Ok(n) if n > 0 => (),
            Ok(_) if decoder.close().is_ok() => break,
            _ => return Err(tokens.failure.unwrap_or(Failure::Cut)),
        }
    }
    if head.status != 200 {
        return Err(Failure::Status(head.status));
    }
    if is_stream {
        if let Some(failure) = tokens.failure {
            return Err(failure);
        }
        if !tokens.is_done {
            return Err(Failure::Cut);
        }
    } else {
        let answer: Chunk<'_> = serde_json::from_slice(&body).map_err(|_| Failure::Malformed)?;
        tokens.name(answer.system_fingerprint, outcome);
    }
    Ok(head.is_keep_alive)
}

/// Takes a final head off `input`, and the engine's name from it.
fn head(input: &mut BytesMut, engine: &mut Option<String>) -> Result<Option<ResponseHead>, Failure> {
    loop {
        let (mut by_proxy, mut by_engine) = (None, None);
        let found = parse_response(input, |name, value| {
            if name.eq_ignore_ascii_case("x-ilb-engine") {
                by_proxy = Some(String::from_utf8_lossy(value).into_owned());
            } else if name.eq_ignore_ascii_case("x-engine") {
                by_engine = Some(String::from_utf8_lossy(value).into_owned());
            }
        });
        let Some((head, length)) = found.map_err(|_| Failure::Malformed)? else { return Ok(None) };
        let _ = input.split_to(length);
        if head.status >= 200 {
            *engine = by_proxy.or(by_engine);
            return Ok(Some(head));
        }
    }
}

/// Times the tokens of one stream.
struct Tokens {
    reader: SseReader,
    from: Instant,
    last: Option<Instant>,
    is_done: bool,
    failure: Option<Failure>,
}

impl Tokens {
    fn new(from: Instant) -> Self {
        Self { reader: SseReader::default(), from, last: None, is_done: false, failure: None }
    }

    fn read(&mut self, body: &mut BytesMut, outcome: &mut Outcome) {
        let now = clock::now();
        let mut reader = std::mem::take(&mut self.reader);
        reader.read(body, |event| self.event(&event, now, outcome));
        self.reader = reader;
    }

    fn event(&mut self, event: &Event, now: Instant, outcome: &mut Outcome) {
        if event.is_error {
            self.failure = Some(Failure::ErrorEvent);
        } else if &event.data[..] == b"[DONE]" {
            self.is_done = true;
        } else if let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(&event.data) {
            // A role, a reason or usage is no token.
            let has_token = chunk.choices.iter().any(|choice| {
                let text = choice.delta.as_ref().and_then(|delta| delta.content.as_ref()).or(choice.text.as_ref());
                text.is_some_and(|text| !text.is_empty())
            });
            if has_token {
                match self.last.replace(now) {
                    None => outcome.ttft = Some(now - self.from),
                    Some(last) => outcome.gaps.push(now - last),
                }
            }
            self.name(chunk.system_fingerprint, outcome);
        } else {
            self.failure = Some(Failure::Malformed);
        }
    }

    /// Without a header that names the engine, its fingerprint does.
    fn name(&self, fingerprint: Option<Cow<'_, str>>, outcome: &mut Outcome) {
        if outcome.engine.is_none() {
            outcome.engine = fingerprint.map(Cow::into_owned);
        }
    }
}
