//! Connections and paths.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::admission::Admission;
use super::api::{Call, Endpoint, Refusal};
use super::args::Settings;
use super::fault::Faults;
use super::journal::Journal;
use super::meter::LoadMeter;
use super::metrics::Metrics;
use super::reply;
use crate::clock;
use crate::http::{BodyDecoder, Method, parse_request};

/// Largest request body: beyond the longest prompts with images.
const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// Bytes kept of requests that arrive while one is answered; a client that sends more has to wait.
const MAX_PIPELINED_BYTES: usize = 64 * 1024;

/// How long an idle connection is kept: vLLM's and SGLang's own 5 s, so that routers meet the
/// closes they will meet there.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// How long a client may take to read what was written before it counts as gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after a failed accept, which mostly means that descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Exit status after a deadly request: a shell's for SIGABRT, as after a CUDA assertion.
const DEATH: i32 = 134;

/// One engine: what all its connections share.
pub(super) struct Engine {
    pub(super) settings: Settings,
    /// The engine's name and its models' as JSON strings.
    pub(super) name_json: String,
    pub(super) models_json: Vec<String>,
    pub(super) admission: Admission,
    pub(super) meter: RefCell<LoadMeter>,
    pub(super) metrics: RefCell<Metrics>,
    pub(super) faults: RefCell<Faults>,
    journal: Journal,
    pub(super) started_at: u64,
    pub(super) answers: Cell<u64>,
}

impl Engine {
    /// Errors: the journal cannot be written.
    pub(super) fn new(settings: Settings) -> Result<Self> {
        let quote = |text: &String| serde_json::Value::from(text.as_str()).to_string();
        Ok(Self {
            name_json: quote(&settings.name),
            models_json: settings.models.iter().map(quote).collect(),
            admission: Admission::new(settings.pace.capacity_rps(), settings.load_window),
            meter: RefCell::new(LoadMeter::new(settings.load_window)),
            metrics: RefCell::new(Metrics::new()),
            faults: RefCell::default(),
            journal: Journal::open(settings.journal.as_deref())?,
            started_at: clock::unix_time().as_secs(),
            answers: Cell::new(0),
            settings,
        })
    }
}

/// Accepts connections until the listener fails for good.
pub(super) async fn serve(listener: TcpListener, engine: Rc<Engine>) -> anyhow::Error {
    let pump = Rc::clone(&engine);
    tokio::task::spawn_local(async move { pump.admission.pump().await });
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let engine = Rc::clone(&engine);
                tokio::task::spawn_local(async move {
                    engine.metrics.borrow_mut().connections += 1;
                    if let Err(error) = connection(stream, &engine).await {
                        debug!(%error, "connection ended");
                    }
                    engine.metrics.borrow_mut().connections -= 1;
                });
            }
            Err(error) => {
                warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The state of a connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    KeepAlive,
    Close,
    Reset,
}

/// The client side of one connection while the engine answers.
pub(super) struct Client<'s> {
    reader: ReadHalf<'s>,
    writer: WriteHalf<'s>,
    input: BytesMut,
    pub(super) out: Vec<u8>,
}

/// The client closed the connection, or stopped reading.
#[derive(Debug)]
pub(super) struct Gone;

impl Client<'_> {
    /// Sends the bytes in `out`.
    pub(super) async fn flush(&mut self) -> Result<(), Gone> {
        // The socket nearly always takes everything at once; only otherwise is a timer needed.
        let sent = match self.writer.try_write(&self.out) {
            Ok(sent) => sent,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
            Err(_) => return Err(Gone),
        };
        if sent < self.out.len() {
            match timeout(WRITE_TIMEOUT, self.writer.write_all(&self.out[sent..])).await {
                Ok(Ok(())) => (),
                _ => return Err(Gone),
            }
        }
        self.out.clear();
        Ok(())
    }

    /// Waits for `event`, unless the client leaves first. A client that closes its sending side
    /// counts as gone, as with real engines.
    pub(super) async fn unless_gone<T>(&mut self, event: impl Future<Output = T>) -> Result<T, Gone> {
        tokio::pin!(event);
        loop {
            tokio::select! {
                biased;
                value = &mut event => return Ok(value),
                read = self.reader.read_buf(&mut self.input), if self.input.len() < MAX_PIPELINED_BYTES => {
                    if !matches!(read, Ok(n) if n > 0) {
                        return Err(Gone);
                    }
                }
            }
        }
    }

    pub(super) async fn sleep_until(&mut self, due: Instant) -> Result<(), Gone> {
        if due <= clock::now() {
            return Ok(());
        }
        self.unless_gone(tokio::time::sleep_until(due)).await
    }

    /// Reads more; false at the end of the connection.
    async fn read(&mut self) -> std::io::Result<bool> {
        match timeout(KEEP_ALIVE, self.reader.read_buf(&mut self.input)).await {
            Ok(read) => Ok(read? > 0),
            Err(_) => Ok(false),
        }
    }
}

async fn connection(mut stream: TcpStream, engine: &Engine) -> Result<()> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.split();
    let mut client = Client { reader, writer, input: BytesMut::with_capacity(8 * 1024), out: Vec::with_capacity(4 * 1024) };
    let mut body = BytesMut::new();
    let after = loop {
        let head = loop {
            if let Some((head, length)) = parse_request(&client.input, |_, _| ())? {
                let _ = client.input.split_to(length);
                break Some(head);
            }
            if !client.read().await? {
                break None;
            }
        };
        let Some(head) = head else { break After::Close };
        if head.expects_continue {
            client.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            let Ok(()) = client.flush().await else { break After::Close };
        }
        body.clear();
        let mut decoder = BodyDecoder::new(head.framing);
        let mut is_whole = decoder.decode(&mut client.input, &mut body)?;
        while !is_whole && body.len() <= MAX_BODY_BYTES && client.read().await? {
            is_whole = decoder.decode(&mut client.input, &mut body)?;
        }
        if !is_whole {
            if body.len() > MAX_BODY_BYTES {
                let message = format!("the body is longer than {MAX_BODY_BYTES} bytes");
                let refusal = Refusal { status: 413, kind: "invalid_request_error", code: None, message };
                reply::refusal(&mut client.out, &refusal, &engine.settings.name, None);
                let _ = client.flush().await;
            }
            break After::Close;
        }
        let after = match engine.route(head.method, &head.path, &body, &mut client).await {
            Ok(after) => after,
            Err(Gone) => break After::Close,
        };
        if after != After::KeepAlive || !head.is_keep_alive {
            break after;
        }
    };
    if after == After::Reset {
        crate::net::reset_on_close(&stream)?;
    }
    Ok(())
}

impl Engine {
    async fn route(&self, method: Method, path: &str, body: &[u8], client: &mut Client<'_>) -> Result<After, Gone> {
        match (method, path) {
            (Method::Post, "/v1/chat/completions") => return self.generate(Endpoint::Chat, body, client).await,
            (Method::Post, "/v1/completions") => return self.generate(Endpoint::Completions, body, client).await,
            (Method::Get, "/health") if self.faults.borrow().is_healthy() => self.say(client, 200, "text/plain", ""),
            (Method::Get, "/health") => self.say(client, 503, "text/plain", ""),
            (Method::Get, "/v1/models") => self.say(client, 200, "application/json", &self.models()),
            (Method::Get, "/metrics") => {
                let load_rps = self.meter.borrow().rate_rps(clock::now());
                let text = self.metrics.borrow().text(&self.settings.models[0], &self.settings.name, load_rps);
                self.say(client, 200, "text/plain; version=0.0.4", &text);
            }
            (Method::Post, "/fault") => {
                let set = self.faults.borrow_mut().set(body, clock::now());
                self.follow_faults();
                match set {
                    Ok(()) => self.say(client, 200, "application/json", "{}"),
                    Err(message) => {
                        self.refuse(client, Refusal { status: 400, kind: "invalid_request_error", code: None, message })
                    }
                }
            }
            (Method::Delete, "/fault") => {
                self.faults.borrow_mut().clear();
                self.follow_faults();
                self.say(client, 200, "application/json", "{}");
            }
            _ => {
                let message = format!("there is no {path:?} for this method");
                self.refuse(client, Refusal { status: 404, kind: "not_found_error", code: None, message });
            }
        }
        client.flush().await?;
        Ok(After::KeepAlive)
    }

    async fn generate(&self, endpoint: Endpoint, body: &[u8], client: &mut Client<'_>) -> Result<After, Gone> {
        let in_flight = {
            let metrics = self.metrics.borrow();
            metrics.running + metrics.waiting
        };
        self.journal.note(body, in_flight);
        if self.faults.borrow().is_deadly(body) {
            warn!("the request is deadly: the process ends");
            // As a crash does it: no destructor runs, and the kernel closes every connection.
            std::process::exit(DEATH);
        }
        let other = self.faults.borrow().model().map(|name| vec![name.to_owned()]);
        match Call::parse(endpoint, body, other.as_ref().unwrap_or(&self.settings.models)) {
            Ok(call) => self.answer(&call, client).await,
            Err(refusal) => {
                self.refuse(client, refusal);
                client.flush().await?;
                Ok(After::KeepAlive)
            }
        }
    }

    /// Gives the queue the present fault's pace.
    fn follow_faults(&self) {
        self.admission.slow(self.faults.borrow().work_factor(), clock::now());
    }

    fn say(&self, client: &mut Client<'_>, status: u16, content_type: &str, body: &str) {
        reply::head(&mut client.out, status, content_type, body.len(), &self.settings.name, None);
        client.out.extend_from_slice(body.as_bytes());
    }

    pub(super) fn refuse(&self, client: &mut Client<'_>, refusal: Refusal) {
        self.metrics.borrow_mut().refuse();
        reply::refusal(&mut client.out, &refusal, &self.settings.name, None);
    }

    fn models(&self) -> String {
        let created = self.started_at;
        let model = |id: &String| serde_json::json!({ "id": id, "object": "model", "created": created, "owned_by": "ilb-bench" });
        let other = self.faults.borrow().model().map(|name| vec![name.to_owned()]);
        let models: Vec<_> = other.as_ref().unwrap_or(&self.settings.models).iter().map(model).collect();
        serde_json::json!({ "object": "list", "data": models }).to_string()
    }
}
