//! A data plane with engines made of threads, for tests over real sockets.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use router_user::io::IoChoice;
use router_user::model::{ClassId, ClusterId, EngineId, Tags};
use router_user::proxy::{DataPlane, DataPlaneStats, ProxyConfig, ProxyHandle, start};
use router_user::publish::routes::Routes;
use router_user::publish::snapshot::{
    ClassEntry, ClusterEntry, EngineEntry, EngineOrder, FORMAT, OrderKind, Route, Share, Snapshot, Status,
};

use crate::ports::Reserved;

/// Bound for anything a test waits for: far above what it takes, far below what a person would
/// wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

#[expect(clippy::disallowed_methods, reason = "tests measure real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A request as an engine received it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Received {
    /// With its empty line.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }
}

/// The value of a field, by its name in any case.
pub(crate) fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// What an engine does with a request; it keeps the connection when true is returned.
pub(crate) trait Script: Fn(&mut TcpStream, &Received) -> bool + Send + Sync + 'static {}
impl<F: Fn(&mut TcpStream, &Received) -> bool + Send + Sync + 'static> Script for F {}

/// A small engine: one thread per connection.
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    pub(crate) received: Arc<Mutex<Vec<Received>>>,
    pub(crate) connections: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    listener: TcpListener,
    /// Nobody else answers at a killed engine's address.
    port: Option<Reserved>,
}

impl Engine {
    pub(crate) fn start(script: impl Script) -> Self {
        let port = Reserved::new();
        let mut engine = Self::on(TcpListener::bind(port.address).unwrap(), script);
        engine.port = Some(port);
        engine
    }

    pub(crate) fn on(listener: TcpListener, script: impl Script) -> Self {
        let engine = Self {
            address: listener.local_addr().unwrap(),
            received: Arc::default(),
            connections: Arc::default(),
            open: Arc::default(),
            listener: listener.try_clone().unwrap(),
            port: None,
        };
        let (received, connections, open) =
            (Arc::clone(&engine.received), Arc::clone(&engine.connections), Arc::clone(&engine.open));
        let script = Arc::new(script);
        std::thread::spawn(move || {
            while let Ok((mut socket, _)) = listener.accept() {
                socket.set_nodelay(true).unwrap();
                connections.fetch_add(1, Ordering::Relaxed);
                open.lock().unwrap().push(socket.try_clone().unwrap());
                let (received, script) = (Arc::clone(&received), Arc::clone(&script));
                std::thread::spawn(move || {
                    let mut held = Vec::new();
                    while let Some(request) = read_request(&mut socket, &mut held) {
                        received.lock().unwrap().push(request.clone());
                        if !script(&mut socket, &request) {
                            break;
                        }
                    }
                    // The registry holds a second descriptor, so dropping this one would not close
                    // the connection.
                    let _gone = socket.shutdown(Shutdown::Both);
                });
            }
        });
        engine
    }

    /// Answers every request with `body`, and its own name in a field.
    pub(crate) fn echo(name: &'static str) -> Self {
        Self::start(move |socket, _| answer(socket, name))
    }

    pub(crate) fn count(&self) -> usize {
        self.received.lock().unwrap().len()
    }

    /// Closes all connections, and refuses new ones.
    pub(crate) fn kill(&self) {
        // SAFETY: no memory is involved; the descriptor is open.
        unsafe { libc::shutdown(std::os::fd::AsRawFd::as_raw_fd(&self.listener), libc::SHUT_RDWR) };
        self.close_connections();
    }

    pub(crate) fn close_connections(&self) {
        for socket in self.open.lock().unwrap().drain(..) {
            let _gone = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn answer(socket: &mut TcpStream, text: &str) -> bool {
    write!(socket, "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{text}", text.len()).is_ok()
}

/// Makes the close of a socket a reset.
pub(crate) fn reset(socket: &TcpStream) {
    socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO)).unwrap();
    // The registry's copy keeps the descriptor open, so the socket is taken apart by connecting it
    // to nothing.
    let nothing = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: the address is valid for its given length during the call.
    let done = unsafe {
        libc::connect(std::os::fd::AsRawFd::as_raw_fd(socket), &raw const nothing, size_of::<libc::sockaddr>() as libc::socklen_t)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Reads one request; `None` at the end of the connection.
fn read_request(socket: &mut TcpStream, held: &mut Vec<u8>) -> Option<Received> {
    let head = read_head(socket, held)?;
    let length = field(&head, "content-length").map_or(0, |v| v.parse().unwrap());
    assert!(field(&head, "transfer-encoding").is_none(), "the proxy knows every body's length");
    while held.len() < length {
        fill(socket, held)?;
    }
    Some(Received { head, body: held.drain(..length).collect() })
}

/// Reads up to and with the empty line.
pub(crate) fn read_head(socket: &mut TcpStream, held: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(at) = held.windows(4).position(|w| w == b"\r\n\r\n") {
            return Some(String::from_utf8(held.drain(..at + 4).collect()).unwrap());
        }
        fill(socket, held)?;
    }
}

fn fill(socket: &mut TcpStream, held: &mut Vec<u8>) -> Option<usize> {
    let mut buffer = [0; 16 << 10];
    match socket.read(&mut buffer) {
        Ok(n @ 1..) => {
            held.extend_from_slice(&buffer[..n]);
            Some(n)
        }
        _ => None,
    }
}

/// A client on one connection.
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    pub(crate) held: Vec<u8>,
}

/// A response as a client received it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn engine(&self) -> &str {
        self.field("x-ilb-engine").unwrap_or_else(|| panic!("no engine in {self:?}"))
    }

    /// The error object's code.
    pub(crate) fn code(&self) -> String {
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {self:?}"));
        assert!(json["error"]["message"].is_string() && json["error"]["type"].is_string(), "{json}");
        json["error"]["code"].as_str().unwrap().to_owned()
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, held: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a completion request with further fields, each with its line end.
    pub(crate) fn post(&mut self, fields: &str, body: &str) {
        self.send(format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{fields}content-length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    pub(crate) fn get(&mut self, target: &str) -> Answer {
        self.send(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
        self.answer()
    }

    /// Sends a completion request for the demo model and reads its answer.
    pub(crate) fn ask(&mut self, fields: &str) -> Answer {
        self.post(fields, r#"{"model":"demo"}"#);
        self.answer()
    }

    /// Reads a whole answer by its framing; panics when it is cut.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Answer {
        let head = read_head(&mut self.socket, &mut self.held).expect("the connection ended within a head");
        let body = if field(&head, "transfer-encoding").is_some() {
            self.chunks().unwrap_or_else(|so_far| panic!("the body was cut after {:?}", String::from_utf8_lossy(&so_far)))
        } else if let Some(length) = field(&head, "content-length") {
            let length: usize = length.parse().unwrap();
            while self.held.len() < length {
                fill(&mut self.socket, &mut self.held).expect("the connection ended within a body");
            }
            self.held.drain(..length).collect()
        } else {
            self.rest()
        };
        Answer { status: status(&head), head, body }
    }

    /// Reads a head alone, as after HEAD, or before a stream is read in steps.
    pub(crate) fn head(&mut self) -> Answer {
        let head = read_head(&mut self.socket, &mut self.held).expect("the connection ended within a head");
        Answer { status: status(&head), head, body: Vec::new() }
    }

    /// The data of the next chunk; `None` after the last one; `Err` when the connection ends first.
    pub(crate) fn chunk(&mut self) -> Result<Option<Vec<u8>>, ()> {
        loop {
            if let Some(at) = self.held.windows(2).position(|w| w == b"\r\n") {
                let size = usize::from_str_radix(std::str::from_utf8(&self.held[..at]).unwrap(), 16).unwrap();
                let end = at + 2 + size + 2;
                if self.held.len() >= end {
                    assert_eq!(&self.held[end - 2..end], b"\r\n");
                    let data = self.held[at + 2..end - 2].to_vec();
                    self.held.drain(..end);
                    return Ok((size > 0).then_some(data));
                }
            }
            fill(&mut self.socket, &mut self.held).ok_or(())?;
        }
    }

    /// All chunks' data; `Err` with what there was when the end is missing.
    pub(crate) fn chunks(&mut self) -> Result<Vec<u8>, Vec<u8>> {
        let mut body = Vec::new();
        loop {
            match self.chunk() {
                Ok(Some(data)) => body.extend_from_slice(&data),
                Ok(None) => return Ok(body),
                Err(()) => return Err(body),
            }
        }
    }

    /// Everything until the connection's end.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while fill(&mut self.socket, &mut self.held).is_some() {}
        std::mem::take(&mut self.held)
    }

    /// Whether the connection has been closed by the proxy with nothing more to read.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.rest().is_empty()
    }
}

fn status(head: &str) -> u16 {
    assert!(head.starts_with("HTTP/1.1 "), "{head:?}");
    head[9..12].parse().unwrap()
}

/// Engines as the snapshot lists them.
pub(crate) struct Listed {
    pub(crate) address: SocketAddr,
    pub(crate) weight: f64,
    pub(crate) tags: &'static [(&'static str, &'static str)],
}

pub(crate) fn tags(tags: &[(&str, &str)]) -> Tags {
    tags.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// A snapshot of one cluster, one model `demo`, engines `e0`, `e1` and so on, and the class `chat`
/// without constraints.
pub(crate) fn snapshot(engines: &[Listed]) -> Snapshot {
    Snapshot {
        format: FORMAT,
        digest: String::new(),
        generation: 1,
        published_unix_ms: 1000,
        reason: String::new(),
        status: Status::Optimal,
        objective_ms: 0.0,
        clusters: vec![ClusterEntry { name: "a".to_owned(), region: "r".to_owned() }],
        engines: (engines.iter().enumerate())
            .map(|(number, listed)| EngineEntry {
                name: format!("e{number}"),
                region: "r".to_owned(),
                address: listed.address,
                models: vec!["demo".to_owned()],
                tags: tags(listed.tags),
                capacity_rps: 100.0,
                load_rps: 0.0,
                latency_ms: 0.0,
                price_ms: 0.0,
                full_ttft_ms: 0.0,
                full_tbot_ms: 0.0,
                order: None,
            })
            .collect(),
        classes: vec![class("chat", "demo", &[])],
        failovers: vec![],
        target_clusters: vec![],
        routes: vec![route(0, 0.0, &engines.iter().map(|e| e.weight).collect::<Vec<_>>())],
    }
}

/// Marks an engine with an operator's order; `since` tells it from others.
pub(crate) fn order(snapshot: &mut Snapshot, engine: usize, kind: OrderKind, since: u64) {
    let (by, reason) = ("alice".to_owned(), String::new());
    snapshot.engines[engine].order = Some(EngineOrder { kind, by, reason, since_unix_ms: since, until_unix_ms: None });
}

pub(crate) fn class(name: &str, model: &str, require: &[(&str, &str)]) -> ClassEntry {
    ClassEntry {
        name: name.to_owned(),
        model: model.to_owned(),
        output_tokens: 10.0,
        priority: 0,
        ttft_budget_ms: 10_000.0,
        require: tags(require),
    }
}

/// A route of the only cluster; `weights` are by engine.
pub(crate) fn route(class: u16, shed_frac: f64, weights: &[f64]) -> Route {
    Route {
        cluster: ClusterId(0),
        class: ClassId(class),
        demand_rps: 1.0,
        price_ms: 0.0,
        shed_frac,
        pinned: false,
        too_far: Vec::new(),
        weights: (weights.iter().enumerate())
            .filter(|&(_, &weight)| weight > 0.0)
            .map(|(engine, &weight)| Share { engine: EngineId::of(engine), weight })
            .collect(),
    }
}

/// A running data plane.
pub(crate) struct World {
    pub(crate) plane: Arc<DataPlane>,
    pub(crate) handle: ProxyHandle,
}

impl World {
    /// Engines with equal weights.
    pub(crate) fn new(io: IoChoice, engines: &[&Engine]) -> Self {
        Self::with(io, ProxyConfig::default(), engines)
    }

    pub(crate) fn with(io: IoChoice, config: ProxyConfig, engines: &[&Engine]) -> Self {
        let weight = 1.0 / engines.len() as f64;
        let listed: Vec<Listed> = engines.iter().map(|e| Listed { address: e.address, weight, tags: &[] }).collect();
        Self::of(io, config, snapshot(&listed))
    }

    pub(crate) fn of(io: IoChoice, config: ProxyConfig, snapshot: Snapshot) -> Self {
        let world = Self::bare(io, config);
        world.apply(snapshot);
        world
    }

    /// Without routes.
    pub(crate) fn bare(io: IoChoice, config: ProxyConfig) -> Self {
        Self::via(io, config, HashMap::new())
    }

    /// Without routes, and with engines that are reached at other addresses than their own.
    pub(crate) fn via(io: IoChoice, config: ProxyConfig, via: HashMap<String, SocketAddr>) -> Self {
        let plane = DataPlane::new("a".to_owned(), via);
        let config = ProxyConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..config };
        let handle = start(&config, io, Arc::clone(&plane), 1).unwrap();
        assert_eq!(handle.io().to_string(), io.to_string());
        Self { plane, handle }
    }

    pub(crate) fn apply(&self, snapshot: Snapshot) {
        snapshot.validate().unwrap();
        let before = self.plane.routes.load_full();
        self.plane.apply(Routes::build(Arc::new(snapshot), ClusterId(0), before.as_deref()));
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.handle.local_addrs()[0])
    }

    pub(crate) fn stats(&self) -> DataPlaneStats {
        self.plane.stats()
    }

    /// Waits until every request begun has an outcome, and checks that each has exactly one.
    #[track_caller]
    pub(crate) fn settled(&self) -> DataPlaneStats {
        until("all requests have an outcome", || {
            let stats = self.stats();
            stats.requests == stats.outcomes.values().sum::<u64>()
        });
        self.stats()
    }

    /// Checks that, but for successes and answers of ours, the outcomes are these.
    #[track_caller]
    pub(crate) fn check_outcomes(&self, expected: &[(&str, u64)]) -> DataPlaneStats {
        let stats = self.settled();
        let mut found: Vec<(&str, u64)> = stats.outcomes.iter().map(|(&name, &n)| (name, n)).filter(|&(_, n)| n > 0).collect();
        found.retain(|&(name, _)| !["ok", "local"].contains(&name));
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected);
        stats
    }
}

/// A gate that a test opens once for each time somebody waits at it.
pub(crate) fn gate() -> (Sender<()>, Arc<Mutex<Receiver<()>>>) {
    let (sender, receiver) = channel();
    (sender, Arc::new(Mutex::new(receiver)))
}

pub(crate) fn pass(gate: &Mutex<Receiver<()>>) {
    gate.lock().unwrap().recv_timeout(PATIENCE).unwrap();
}
