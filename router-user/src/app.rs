//! The one place where adapters are wired to the core: the roles `run`, `proxy` and `control`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use router_user::admin::{self, AdminState};
use router_user::clock::Clock;
use router_user::config::Config;
use router_user::control::{self, Controller, ControllerHandle};
use router_user::dataplane::{self, DataRole, KernelRole, Source};
use router_user::kernel::{KernelConfig, KernelPlane};
use router_user::proxy::{self, DataPlane, ProxyHandle};
use router_user::publish::store::{DirStore, EtcdStore, HttpStore};
use router_user::rng;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::claims::Claims;
use crate::cli::args::{Admin, Control, Serve};
use crate::cli::usage::{UsageError, load};

/// Time that streams get to finish after the process was asked to stop: most answers take less.
const GRACE: Duration = Duration::from_secs(30);
/// How often the kernel plane looks for listeners that did not register themselves, and logs its
/// rare events.
const KERNEL_UPKEEP: Duration = Duration::from_secs(1);

/// `ilb run`: control plane, data plane and kernel plane in one process.
pub(crate) async fn run(args: Serve) -> anyhow::Result<()> {
    ignore_signals()?;
    let (config, cluster) = prepare(&args)?;
    let clock = Clock::start();
    let claims = Claims::take(&config, true).await?;
    let workers = start_workers(&config, &args, &cluster)?;
    let controller = start_controller(&config, clock, claims.control).await?;
    let source = Source::Local(controller.clone());
    let (handle, role) = start_data(&config, cluster, workers, source, clock).await?;
    let state = AdminState { clock, controller: Some(controller.clone()), data: Some(role) };
    admin::serve(state, claims.socket, claims.admin).context("start the admin endpoints")?;
    stop_signal().await?;
    controller.resign().await;
    stop(handle).await;
    Ok(())
}

/// `ilb proxy`: one cluster's data plane.
pub(crate) async fn proxy(args: Serve) -> anyhow::Result<()> {
    ignore_signals()?;
    let (config, cluster) = prepare(&args)?;
    let clock = Clock::start();
    let claims = Claims::take(&config, false).await?;
    let workers = start_workers(&config, &args, &cluster)?;
    let source = match connect_etcd(&config).await? {
        Some(store) => Source::Etcd(store),
        None => match config.store.url.strip_prefix("file://") {
            Some(dir) => Source::Dir(DirStore::open(Path::new(dir))?, Arc::default()),
            None => Source::Http(HttpStore::new(&config.store.url)),
        },
    };
    let (handle, role) = start_data(&config, cluster, workers, source, clock).await?;
    admin::serve(AdminState { clock, controller: None, data: Some(role) }, claims.socket, claims.admin)
        .context("start the admin endpoints")?;
    stop_signal().await?;
    stop(handle).await;
    Ok(())
}

/// `ilb control`: the control plane alone.
pub(crate) async fn control(args: Control) -> anyhow::Result<()> {
    ignore_signals()?;
    let mut config = load(&args.config)?;
    override_admin(&mut config, &args.admin);
    if let Some(listen) = args.listen {
        config.control.listen = listen;
    }
    let (config, clock) = (Arc::new(config), Clock::start());
    let claims = Claims::take(&config, true).await?;
    let controller = start_controller(&config, clock, claims.control).await?;
    let state = AdminState { clock, controller: Some(controller.clone()), data: None };
    admin::serve(state, claims.socket, claims.admin).context("start the admin endpoints")?;
    stop_signal().await?;
    controller.resign().await;
    Ok(())
}

/// Reads the configuration, applies the arguments to it, and determines the cluster of this
/// process.
fn prepare(args: &Serve) -> Result<(Arc<Config>, String), UsageError> {
    let mut config = load(&args.config)?;
    override_admin(&mut config, &args.admin);
    if !args.listen.is_empty() {
        config.proxy.listen.clone_from(&args.listen);
    }
    for (engine, _) in &args.via {
        if config.fleet.engine(engine).is_none() {
            return Err(UsageError::Arguments(format!("--via names the unknown engine {engine:?}")));
        }
    }
    let names = || config.fleet.clusters.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ");
    let cluster = match (&args.cluster, &config.fleet.clusters[..]) {
        (Some(name), _) if config.fleet.cluster(name).is_some() => name.clone(),
        (Some(name), _) => {
            return Err(UsageError::Arguments(format!(
                "--cluster names the unknown cluster {name:?}; wanted one of {}",
                names()
            )));
        }
        (None, [only]) => only.name.clone(),
        (None, _) => {
            let message = format!("the configuration has several clusters; wanted --cluster with one of {}", names());
            return Err(UsageError::Arguments(message));
        }
    };
    Ok((Arc::new(config), cluster))
}

fn override_admin(config: &mut Config, admin: &Admin) {
    if let Some(listen) = admin.admin_listen {
        config.admin.listen = Some(listen);
    }
    if let Some(socket) = &admin.socket {
        config.admin.socket.clone_from(socket);
    }
}

/// Connects to the etcd of the configuration, if it names one. It need not be up yet.
async fn connect_etcd(config: &Config) -> anyhow::Result<Option<EtcdStore>> {
    if config.store.etcd.is_empty() {
        return Ok(None);
    }
    let addresses: Vec<String> = config.store.etcd.iter().map(SocketAddr::to_string).collect();
    Ok(Some(EtcdStore::connect(&addresses, &config.store.prefix).await?))
}

/// Starts the control plane; `endpoint` is where data planes of other processes reach it.
async fn start_controller(config: &Arc<Config>, clock: Clock, endpoint: Option<TcpListener>) -> anyhow::Result<ControllerHandle> {
    let controller = Controller::start(Arc::clone(config), clock, connect_etcd(config).await?)?;
    if let Some(endpoint) = endpoint {
        let address = endpoint.local_addr().context("control.listen")?;
        control::serve_on(controller.clone(), endpoint);
        tracing::info!(%address, store = %config.store.dir.display(), "control plane started");
    }
    Ok(controller)
}

/// Starts a data plane: its first snapshot is the best that this machine has, then it follows the
/// controller.
async fn start_data(
    config: &Arc<Config>,
    cluster: String,
    (handle, plane): (ProxyHandle, Arc<DataPlane>),
    source: Source,
    clock: Clock,
) -> anyhow::Result<(ProxyHandle, Arc<DataRole>)> {
    let (kernel, kernel_error) = attach_kernel(config);
    let store = DirStore::open(&config.store.dir)?;
    let role = DataRole::new(dataplane::Setup {
        cluster,
        plane,
        listen: handle.local_addrs().to_vec(),
        io: handle.io().to_string(),
        store: store.clone(),
        kernel,
        kernel_error,
        fleet: config.fleet.clone(),
        clock,
    });
    let setup = role.setup();
    let first = dataplane::first_snapshot(&config.fleet, &store, &setup.cluster)?;
    dataplane::apply(&role, Arc::new(first)).await?;
    tracing::info!(cluster = setup.cluster, listen = ?setup.listen, io = setup.io, "data plane started");
    tokio::spawn(dataplane::follow(Arc::clone(&role), source.clone()));
    tokio::spawn(dataplane::watch_silence(Arc::clone(&role), config.store.stale_after));
    tokio::spawn(dataplane::watch_outages(Arc::clone(&role)));
    tokio::spawn(dataplane::watch_reachability(Arc::clone(&role)));
    if config.control.measured_rtt {
        tokio::spawn(dataplane::measure_distances(Arc::clone(&role), clock));
    }
    tokio::spawn(dataplane::report_demand(Arc::clone(&role), source, clock, config.control.period));
    if setup.kernel.is_some() {
        tokio::spawn(maintain_kernel(Arc::clone(&role)));
    }
    Ok((handle, role))
}

/// Starts the workers of the proxy, which takes `proxy.listen`. They answer "not ready" until there
/// is a snapshot.
fn start_workers(config: &Config, args: &Serve, cluster: &str) -> anyhow::Result<(ProxyHandle, Arc<DataPlane>)> {
    let via: HashMap<String, SocketAddr> = args.via.iter().cloned().collect();
    let plane = DataPlane::new(cluster.to_owned(), via);
    let handle = proxy::start(&config.proxy, args.io, Arc::clone(&plane), rng::entropy())?;
    Ok((handle, plane))
}

/// Attaches the kernel plane if it is enabled. Without privileges, or when anything else is
/// missing, the proxy goes on alone.
fn attach_kernel(config: &Config) -> (Option<KernelRole>, Option<String>) {
    if !config.kernel.enabled {
        return (None, None);
    }
    let kernel = KernelConfig {
        service: config.kernel.service,
        pin_dir: config.kernel.pin_dir.clone(),
        cgroup: config.kernel.cgroup.clone(),
    };
    match KernelPlane::attach(&kernel) {
        Ok(plane) => {
            let class = config.fleet.classes[config.kernel.class.index()].name.clone();
            (Some(KernelRole::new(plane, class)), None)
        }
        Err(error) => {
            tracing::warn!(%error, "no kernel plane; the proxy serves alone");
            (None, Some(error.to_string()))
        }
    }
}

async fn maintain_kernel(role: Arc<DataRole>) {
    let mut ticks = tokio::time::interval(KERNEL_UPKEEP);
    loop {
        ticks.tick().await;
        if let Some(kernel) = &role.setup().kernel {
            kernel.maintain();
        }
    }
}

/// Keeps the process alive on signals that do not ask it to stop: each would end it by default,
/// streams and all.
///
/// A terminal sends SIGHUP when it closes, log rotation sends SIGUSR1 or SIGHUP; the log goes to
/// stderr and is never reopened.
fn ignore_signals() -> anyhow::Result<()> {
    for (name, kind) in
        [("SIGHUP", SignalKind::hangup()), ("SIGUSR1", SignalKind::user_defined1()), ("SIGUSR2", SignalKind::user_defined2())]
    {
        let mut signals = signal(kind)?;
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                tracing::info!(signal = name, "signal ignored: the configuration is only read at the start");
            }
        });
    }
    Ok(())
}

/// Waits for SIGINT or SIGTERM.
async fn stop_signal() -> anyhow::Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// Lets streams finish, up to [`GRACE`]; a second signal ends it at once.
async fn stop(handle: ProxyHandle) {
    tracing::info!(grace_s = GRACE.as_secs(), "stopping; streams in flight may finish");
    let finished = tokio::task::spawn_blocking(move || handle.shutdown(GRACE));
    tokio::select! {
        outcome = finished => if let Err(error) = outcome { tracing::error!(%error, "the workers did not stop cleanly") },
        _ = stop_signal() => tracing::warn!("stopping at once"),
    }
}
