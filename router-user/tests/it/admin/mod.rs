//! The admin port and socket over a real controller, data plane and proxy, in this process.

mod exposition;
mod fields;
mod metrics;
mod orders;
mod ready;
mod views;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use router_user::admin::{self, AdminState};
use router_user::clock::Clock;
use router_user::config::{self, Config};
use router_user::control::Controller;
use router_user::dataplane::{self, DataRole, Source};
use router_user::io::IoChoice;
use router_user::proxy::{self, DataPlane, ProxyHandle};
use router_user::publish::store::DirStore;
use tokio::net::TcpListener;

/// How long anything may take that these tests wait for.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two looks at something that is waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// `ilb run` as tasks and threads of this process.
pub(crate) struct World {
    pub(crate) role: Arc<DataRole>,
    pub(crate) admin: SocketAddr,
    pub(crate) socket: PathBuf,
    proxy: ProxyHandle,
    _folder: tempfile::TempDir,
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

/// A configuration with one cluster, and an engine at each of `addresses`.
fn config(addresses: &[SocketAddr]) -> Config {
    let mut text = "[control]\nperiod = \"200ms\"\nhealth_period = \"200ms\"\nheadroom = 0.2\n\
        [[cluster]]\nname = \"a\"\nregion = \"r\"\ndemand_rps = { chat = 10 }\n\
        [[class]]\nname = \"chat\"\nmodel = \"m\"\noutput_tokens = 3\n[rtt_ms.r]\nr = 1\n\
        [profile.p]\ncapacity_rps = 50\nttft_ms = [[0, 50], [50, 100]]\ntbot_ms = [[0, 10], [50, 20]]\n"
        .to_owned();
    for (number, address) in (1..).zip(addresses) {
        text += &format!(
            "[[engine]]\nname = \"e{number}\"\nregion = \"r\"\naddress = \"{address}\"\nmodels = [\"m\"]\nprofile = \"p\"\n"
        );
    }
    config::parse(&text).expect("legal")
}

impl World {
    async fn start(config: Config, has_controller: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config;
        config.store.dir = folder.path().join("snapshots");
        let (config, clock) = (Arc::new(config), Clock::start());
        let controller =
            has_controller.then(|| Controller::start(Arc::clone(&config), clock, None).expect("a controller starts"));
        let plane = DataPlane::new("a".to_owned(), Default::default());
        let settings =
            proxy::ProxyConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..proxy::ProxyConfig::default() };
        let proxy = proxy::start(&settings, IoChoice::Epoll, Arc::clone(&plane), 7).expect("workers start");
        let store = DirStore::open(&config.store.dir).expect("a store");
        let role = DataRole::new(dataplane::Setup {
            cluster: "a".to_owned(),
            plane,
            listen: proxy.local_addrs().to_vec(),
            io: proxy.io().to_string(),
            store: store.clone(),
            kernel: None,
            kernel_error: None,
            fleet: config.fleet.clone(),
            clock,
        });
        let first = dataplane::first_snapshot(&config.fleet, &store, "a").expect("planned");
        dataplane::apply(&role, Arc::new(first)).await.expect("applied");
        if let Some(controller) = &controller {
            let source = Source::Local(controller.clone());
            tokio::spawn(dataplane::follow(Arc::clone(&role), source.clone()));
            tokio::spawn(dataplane::report_demand(Arc::clone(&role), source, clock, config.control.period));
        }
        tokio::spawn(dataplane::watch_reachability(Arc::clone(&role)));
        let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let admin = port.local_addr().expect("bound");
        let path = folder.path().join("ilb.sock");
        let socket = admin::bind_socket(&path).await.expect("a socket");
        let state = AdminState { clock, controller, data: Some(Arc::clone(&role)) };
        admin::serve(state, socket, Some(port)).expect("the admin thread starts");
        Self { role, admin, socket: path, proxy, _folder: folder }
    }

    /// Status and body of a page of the admin port.
    async fn get(&self, path: &str) -> (u16, String) {
        let response = reqwest::get(format!("http://{}{path}", self.admin)).await.expect("the admin port answers");
        (response.status().as_u16(), response.text().await.expect("a body"))
    }

    /// Waits until a page of the admin port is as wanted.
    async fn until(&self, path: &str, wanted: impl Fn(u16, &str) -> bool) -> String {
        let clock = Clock::start();
        loop {
            let (status, body) = self.get(path).await;
            if wanted(status, &body) {
                return body;
            }
            assert!(clock.now() < PATIENCE, "waited in vain; {path} answers {status}: {body}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends a request that streams through the proxy; returns the answer.
    async fn chat(&self) -> String {
        let (status, answer) = self.ask().await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Status and body of the answer to such a request.
    async fn ask(&self) -> (u16, String) {
        let url = format!("http://{}/v1/chat/completions", self.proxy.local_addrs()[0]);
        let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
        let request = reqwest::Client::new().post(url).header("content-type", "application/json").body(body);
        let response = request.send().await.expect("the proxy answers");
        (response.status().as_u16(), response.text().await.expect("a whole answer"))
    }
}

/// Three tokens as a stream.
const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"content\":\"c\"}}]}\n\n";

/// An engine that answers every request with [`STREAM`], and tells vLLM's metrics.
async fn engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let metrics = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n";
    let stream = async || ([("content-type", "text/event-stream")], STREAM).into_response();
    let router = Router::new()
        .route("/health", get(async || "ok"))
        .route("/metrics", get(async move || metrics))
        .route("/v1/chat/completions", post(stream));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}
