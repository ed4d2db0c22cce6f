//! Stores, with the real thing behind each: a disk, a controller's endpoint, an etcd.

mod canary;
mod contract;
mod disk;
mod endpoint;
mod etcd;
mod failover;
mod faults;
mod orders;
mod patience;
mod process;
mod restart;
mod standby;
mod takeover;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use router_user::clock::Clock;
use router_user::config;
use router_user::control::{Controller, ControllerHandle};
use router_user::publish::Generation;
use router_user::publish::snapshot::Snapshot;
use router_user::publish::store::{Election, EtcdStore, Term};

use crate::ports::Reserved;

/// How long anything may take that these tests wait for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The fleet of these tests.
const EXAMPLE: &str = include_str!("../../../../examples/three-regions.toml");

pub(crate) fn run(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test());
}

/// A sealed snapshot of the example fleet whose content tells its number; `padding` makes it
/// larger.
pub(crate) fn snapshot(generation: Generation, padding: usize) -> Snapshot {
    let config = config::parse(EXAMPLE).expect("legal");
    let reason = format!("{generation} {}", "x".repeat(padding));
    let content = Snapshot { generation: generation.0, reason, ..Snapshot::describe(&config.fleet) };
    content.sealed()
}

/// A controller of the fleet in `source` that plans ten times a second.
async fn controller(folder: &Path, source: &str, etcd: Option<&Etcd>) -> ControllerHandle {
    let mut config = config::parse(source).expect("legal");
    config.store.dir = folder.to_owned();
    config.store.lease = Duration::from_secs(2);
    config.control.period = Duration::from_millis(100);
    // Nothing listens where the engines are said to be; their health must not make plans of its
    // own.
    config.control.health_period = Duration::from_secs(3_600);
    config.control.scrape_period = None;
    let store = match etcd {
        Some(etcd) => Some(etcd.store().await),
        None => None,
    };
    Controller::start(Arc::new(config), Clock::start(), store).expect("started")
}

/// An etcd of its own, on this machine, on ports of its own; it ends with this.
pub(crate) struct Etcd {
    process: Option<Child>,
    folder: tempfile::TempDir,
    client: Reserved,
    peer: Reserved,
}

impl Etcd {
    /// Starts one and waits until it answers. There is no skipping: a machine without etcd-server
    /// is not set up.
    pub(crate) fn start() -> Self {
        let mut etcd = Self::absent();
        etcd.restart();
        etcd
    }

    /// One that has an address and does not run yet.
    pub(crate) fn absent() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { process: None, folder, client: Reserved::new(), peer: Reserved::new() }
    }

    pub(crate) fn lose_data(&self) {
        std::fs::remove_dir_all(self.folder.path().join("data")).expect("it has run");
    }

    pub(crate) fn restart(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("log")).expect("a log");
        let [client, peer] = [&self.client, &self.peer].map(|port| format!("http://{}", port.address));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.folder.path().join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "warn"]);
        // Without compaction a store that is written to all the time grows until etcd refuses more.
        command.args(["--auto-compaction-mode", "revision", "--auto-compaction-retention", "200"]);
        // A lease lasts at least one and a half election times.
        command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = command.spawn().expect("etcd starts; `cargo xtask setup` installs it");
        self.process = Some(process);
        let give_up = Clock::start();
        while std::net::TcpStream::connect(self.client.address).is_err() {
            assert!(give_up.now() < PATIENCE, "etcd does not answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("killed");
            process.wait().expect("waited for");
        }
    }

    /// Stops it where it is, or lets it go on: an etcd that hangs.
    pub(crate) fn freeze(&self, frozen: bool) {
        let signal = if frozen { libc::SIGSTOP } else { libc::SIGCONT };
        let process = self.process.as_ref().expect("running").id();
        // SAFETY: kill takes two integers and touches no memory.
        assert_eq!(unsafe { libc::kill(process as libc::pid_t, signal) }, 0);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.client.address
    }

    pub(crate) async fn store(&self) -> EtcdStore {
        EtcdStore::connect(&[self.address().to_string()], "/test").await.expect("an address")
    }

    /// A client of etcd itself.
    pub(crate) async fn raw(&self) -> etcd_client::Client {
        etcd_client::Client::connect([self.address().to_string()], None).await.expect("an address")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Stands for election until it is won, for longer than a test takes.
pub(crate) async fn lead(store: &EtcdStore, name: &str) -> Term {
    lead_for(store, name, 2 * PATIENCE).await
}

/// The same with a lease that a test may outlive.
pub(crate) async fn lead_for(store: &EtcdStore, name: &str, length: Duration) -> Term {
    let clock = Clock::start();
    loop {
        match store.campaign(name, length, Generation(0)).await {
            Ok(Election::Won(term)) => return term,
            other => assert!(clock.now() < PATIENCE, "not elected: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
