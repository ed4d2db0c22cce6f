//! One running fleet: its engines, relays, control plane, proxies and load.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use router_user::config::Config;
use router_user::model::{ClassId, ClusterId, Curve, EngineId};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe;

use super::INTERVAL;
use crate::load::{Kind, Report};
use crate::net::Reserved;
use crate::process::{self, Child};

/// Round trips below this are not relayed: the loopback stands for them.
const MIN_RELAYED_MS: f64 = 2.0;

/// Time constant of the false engines' load measurement at full scale.
const LOAD_WINDOW: Duration = Duration::from_secs(2);

/// Number of conversations. Each stays with its engine, so each has to be a small part of the load.
const SESSIONS: u32 = 1_000_000;

/// The deployment to run.
pub(super) struct Site<'a> {
    pub(super) config: &'a Config,
    pub(super) scale: f64,
    pub(super) dir: &'a Path,
    pub(super) seed: u64,
}

/// How requests are routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routing {
    Planned,
    Nearest,
}

pub(super) struct Fleet {
    routing: Routing,
    /// By engine.
    pub(super) engines: Vec<(SocketAddr, Child)>,
    /// By cluster.
    pub(super) proxies: Vec<(SocketAddr, Child)>,
    pub(super) control: SocketAddr,
    pub(super) socket: PathBuf,
    _control: Child,
    _relay: Option<Child>,
}

impl Fleet {
    /// Starts everything but the load, and waits until all of it answers.
    pub(super) async fn start(site: &Site<'_>, routing: Routing, has_free_ports: bool) -> Result<Self> {
        let folder = site.dir.join(routing.name());
        std::fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
        let (config, places) = placed(site, &folder, has_free_ports)?;
        let file = folder.join("control.toml");
        write(&file, &config)?;
        let engines = start_engines(site, &config, &file, &folder).await?;
        let relays = Relays::start(&config, &process::sibling("ilb-bench")?, &folder).await?;

        let ilb = process::sibling("ilb")?;
        let mut command = process::logged(&ilb, &folder.join("control.log"))?;
        command.args(["control", "-c"]).arg(&file);
        let mut control = Child::spawn("control plane", &mut command)?;
        control.keep_ports(places.ports);
        control.answers(config.control.listen, "/v1/snapshot", 200).await.with_context(|| log(&folder, "control"))?;
        let socket = config.admin.socket.clone();
        if routing == Routing::Nearest {
            pin_nearest(&config, &ilb, &socket)?;
        }

        let mut proxies = Vec::new();
        for (cluster, (&front, &admin)) in config.fleet.cluster_ids().zip(places.fronts.iter().zip(&places.admins)) {
            proxies.push((front, start_proxy(&config, cluster, (front, admin), &relays, &folder).await?));
        }
        Ok(Self { routing, engines, proxies, control: config.control.listen, socket, _control: control, _relay: relays.child })
    }

    /// Starts the load: one generator for each class, with all clusters as its targets.
    pub(super) fn load(&self, site: &Site<'_>) -> Result<Load> {
        let own = process::sibling("ilb-bench")?;
        let fleet = &site.config.fleet;
        let mut load = Load { readers: Vec::new(), children: Vec::new() };
        for class in fleet.class_ids() {
            let kind = &fleet.classes[class.index()];
            let log = site.dir.join(self.routing.name()).join(format!("load-{}.log", kind.name));
            let file = std::fs::File::create(&log).with_context(|| format!("failed to write {}", log.display()))?;
            let mut command = Command::new(&own);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
            command.args(["load", "--live", "--json", "--interval", &format!("{}s", INTERVAL.as_secs())]);
            command.args(["--model", &kind.model, "--max-tokens", &(kind.output_tokens.round().max(1.0)).to_string()]);
            command.args(["--sessions", &SESSIONS.to_string(), "--seed", &(site.seed + class.index() as u64).to_string()]);
            for (cluster, (front, _)) in fleet.clusters.iter().zip(&self.proxies) {
                let rate_rps = cluster.demand_rps[class.index()] * site.scale;
                command.args(["--target", &format!("{}=http://{front}@{rate_rps}", cluster.name)]);
            }
            let mut child = Child::spawn(&format!("load of class {}", kind.name), &mut command)?;
            let output = child.take_output().context("the load's output is a pipe")?;
            let reader = pipe::Receiver::from_owned_fd(output).context("failed to read the load's reports")?;
            load.readers.push((class, BufReader::new(reader).lines()));
            load.children.push(child);
        }
        Ok(load)
    }
}

impl Routing {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Nearest => "nearest",
        }
    }
}

/// The load on one fleet; ends when dropped.
pub(super) struct Load {
    readers: Vec<(ClassId, Lines<BufReader<pipe::Receiver>>)>,
    children: Vec<Child>,
}

impl Load {
    /// The next interval of any class. Can be dropped at any time without losing a report.
    pub(super) async fn next(&mut self) -> Result<(ClassId, Report)> {
        use std::task::Poll;
        let (class, line) = std::future::poll_fn(|context| {
            for (class, lines) in &mut self.readers {
                if let Poll::Ready(line) = std::pin::Pin::new(&mut *lines).poll_next_line(context) {
                    return Poll::Ready((*class, line));
                }
            }
            Poll::Pending
        })
        .await;
        let Some(line) = line.context("failed to read the load's reports")? else {
            let gone: Vec<_> = self.children.iter_mut().filter_map(|c| (!c.is_running()).then(|| c.name().to_owned())).collect();
            bail!("{} ended", if gone.is_empty() { "the load".to_owned() } else { gone.join(", ") });
        };
        let report: Report = serde_json::from_str(&line).with_context(|| format!("the load reported {line:?}"))?;
        ensure!(report.kind == Kind::Interval, "the load ended by itself");
        Ok((class, report))
    }
}

/// Addresses that stand for engines at a distance.
struct Relays {
    paths: Vec<(ClusterId, EngineId, SocketAddr)>,
    child: Option<Child>,
}

impl Relays {
    async fn start(config: &Config, own: &Path, folder: &Path) -> Result<Self> {
        let fleet = &config.fleet;
        let pairs = fleet.cluster_ids().flat_map(|cluster| fleet.engine_ids().map(move |engine| (cluster, engine)));
        let far: Vec<_> = pairs.filter(|&(cluster, engine)| fleet.rtt_ms(cluster, engine) >= MIN_RELAYED_MS).collect();
        if far.is_empty() {
            return Ok(Self { paths: Vec::new(), child: None });
        }
        let mut command = process::logged(own, &folder.join("relay.log"))?;
        command.arg("relay");
        let mut paths = Vec::new();
        let ports = Reserved::new(far.len())?;
        for ((cluster, engine), &address) in far.into_iter().zip(ports.iter()) {
            let to = fleet.engines[engine.index()].address;
            command.args(["--link", &format!("{address}={to}@{}", fleet.rtt_ms(cluster, engine))]);
            paths.push((cluster, engine, address));
        }
        let mut child = Child::spawn("relay", &mut command)?;
        child.keep_ports(ports);
        for (_, _, address) in &paths {
            child.answers(*address, "/health", 200).await?;
        }
        Ok(Self { paths, child: Some(child) })
    }

    fn of(&self, cluster: ClusterId) -> impl Iterator<Item = (EngineId, SocketAddr)> {
        self.paths.iter().filter(move |(from, ..)| *from == cluster).map(|&(_, engine, address)| (engine, address))
    }
}

/// Addresses of one fleet's proxies.
struct Places {
    /// By cluster: where clients connect.
    fronts: Vec<SocketAddr>,
    /// By cluster: where `/readyz` is.
    admins: Vec<SocketAddr>,
    ports: Reserved,
}

/// The scaled configuration with the addresses, sockets and folders of one fleet.
fn placed(site: &Site<'_>, folder: &Path, has_free_ports: bool) -> Result<(Config, Places)> {
    let mut config = scaled(site.config, site.scale)?;
    let fleet = &mut config.fleet;
    let ports = Reserved::new(fleet.engines.len() + 2 * fleet.clusters.len() + 1)?;
    let free = ports.to_vec();
    let (for_engines, rest) = free.split_at(fleet.engines.len());
    let (for_proxies, rest) = rest.split_at(fleet.clusters.len());
    let (for_admin, for_control) = rest.split_at(fleet.clusters.len());
    let mut fronts = for_proxies.to_vec();
    if has_free_ports {
        for (engine, address) in fleet.engines.iter_mut().zip(for_engines) {
            engine.address = *address;
        }
    } else {
        fronts = consecutive(config.proxy.listen[0], fleet.clusters.len())?;
    }
    config.control.listen = for_control[0];
    config.store.url = format!("http://{}", for_control[0]);
    // The configuration's own ports go with its own socket, so that `ilb status` finds the fleet
    // where the file says.
    config.admin.socket = if has_free_ports {
        folder.join("control.sock")
    } else {
        std::path::absolute(&config.admin.socket).context("failed to find the folder of the socket")?
    };
    if let Some(parent) = config.admin.socket.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("failed to make {}", parent.display()))?;
    }
    config.admin.listen = None;
    config.store.dir = folder.join("control-snapshots");
    config.kernel.enabled = false;
    Ok((config, Places { fronts, admins: for_admin.to_vec(), ports }))
}

/// Starts a false engine for each engine of the fleet.
async fn start_engines(site: &Site<'_>, config: &Config, file: &Path, folder: &Path) -> Result<Vec<(SocketAddr, Child)>> {
    let own = process::sibling("ilb-bench")?;
    let load_window = format!("{}ms", LOAD_WINDOW.div_f64(site.scale.min(1.0)).as_millis());
    let mut engines = Vec::new();
    for engine in &config.fleet.engines {
        let mut command = process::logged(&own, &folder.join(format!("engine-{}.log", engine.name)))?;
        command.args(["engine", "--engine", &engine.name, "--load-window", &load_window, "-c"]).arg(file);
        let mut child = Child::spawn(&format!("engine {}", engine.name), &mut command)?;
        child.answers(engine.address, "/health", 200).await?;
        engines.push((engine.address, child));
    }
    Ok(engines)
}

/// Starts the proxy of one cluster; it listens at `front` and has its admin port at `admin`.
async fn start_proxy(
    config: &Config,
    cluster: ClusterId,
    (front, admin): (SocketAddr, SocketAddr),
    relays: &Relays,
    folder: &Path,
) -> Result<Child> {
    let name = config.fleet.clusters[cluster.index()].name.clone();
    let mut own = config.clone();
    own.proxy.listen = vec![front];
    own.proxy.workers = 1;
    own.admin.listen = Some(admin);
    own.admin.socket = folder.join(format!("proxy-{name}.sock"));
    own.store.dir = folder.join(format!("proxy-{name}-snapshots"));
    let file = folder.join(format!("proxy-{name}.toml"));
    write(&file, &own)?;
    let mut command = process::logged(&process::sibling("ilb")?, &folder.join(format!("proxy-{name}.log")))?;
    command.args(["proxy", "--cluster", &name, "-c"]).arg(&file);
    for (engine, address) in relays.of(cluster) {
        command.args(["--via", &format!("{}={address}", config.fleet.engines[engine.index()].name)]);
    }
    let mut child = Child::spawn(&format!("proxy {name}"), &mut command)?;
    child.answers(admin, "/readyz", 200).await.with_context(|| log(folder, &format!("proxy-{name}")))?;
    Ok(child)
}

/// The same fleet on a scaled load axis.
fn scaled(config: &Config, scale: f64) -> Result<Config> {
    let mut config = config.clone();
    let curve = |curve: &Curve| Curve::new(curve.knots().iter().map(|&(load, value)| (load * scale, value)).collect());
    for profile in &mut config.fleet.profiles {
        profile.capacity_rps *= scale;
        profile.ttft_ms = curve(&profile.ttft_ms).with_context(|| format!("profile {} scaled by {scale}", profile.name))?;
        profile.tbot_ms = curve(&profile.tbot_ms).with_context(|| format!("profile {} scaled by {scale}", profile.name))?;
    }
    for cluster in &mut config.fleet.clusters {
        cluster.demand_rps.iter_mut().for_each(|rps| *rps *= scale);
    }
    Ok(config)
}

/// `count` addresses from `first` upwards.
fn consecutive(first: SocketAddr, count: usize) -> Result<Vec<SocketAddr>> {
    (0..count)
        .map(|n| {
            let port = u16::try_from(usize::from(first.port()) + n)
                .context("proxy.listen leaves no room for a port for each cluster")?;
            Ok(SocketAddr::new(first.ip(), port))
        })
        .collect()
}

/// Pins every cluster and class to the nearest engine that may serve it.
fn pin_nearest(config: &Config, ilb: &Path, socket: &Path) -> Result<()> {
    let fleet = &config.fleet;
    for cluster in fleet.cluster_ids() {
        for class in fleet.class_ids() {
            let eligible = fleet.engine_ids().filter(|&engine| fleet.ineligible(class, engine).is_none());
            let nearest = eligible.min_by(|&a, &b| fleet.rtt_ms(cluster, a).total_cmp(&fleet.rtt_ms(cluster, b)));
            let Some(nearest) = nearest else { continue };
            let names = (&fleet.clusters[cluster.index()].name, &fleet.classes[class.index()].name);
            let mut command = Command::new(ilb);
            command.args(["weights", "set", "--cluster", names.0, "--class", names.1]);
            command.arg(format!("{}=1.0", fleet.engines[nearest.index()].name)).arg("--socket").arg(socket);
            let output = command.output().context("failed to start ilb")?;
            let told = String::from_utf8_lossy(&output.stderr);
            ensure!(
                output.status.success(),
                "failed to pin class {} of cluster {} to its nearest engine: {told}",
                names.1,
                names.0
            );
        }
    }
    Ok(())
}

fn write(file: &Path, config: &Config) -> Result<()> {
    std::fs::write(file, config.to_toml()).with_context(|| format!("failed to write {}", file.display()))
}

/// The log of a program, for the message about its failure.
fn log(folder: &Path, name: &str) -> String {
    let path = folder.join(format!("{name}.log"));
    format!("{} holds:\n{}", path.display(), std::fs::read_to_string(&path).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use router_user::config;

    #[test]
    fn scaling_keeps_ratios_and_latencies() {
        let example = config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal");
        let scaled = scaled(&example, 0.2).expect("scalable");
        let (before, after) = (&example.fleet.profiles[0], &scaled.fleet.profiles[0]);
        assert!((after.capacity_rps - before.capacity_rps * 0.2).abs() < 1e-9);
        assert!((after.ttft_ms.value(18.0) - before.ttft_ms.value(90.0)).abs() < 1e-6);
        assert!((scaled.fleet.clusters[1].demand_rps[0] - 24.0).abs() < 1e-9);
        // The written file is the configuration that runs.
        assert_eq!(config::parse(&scaled.to_toml()).expect("legal"), scaled);
    }

    #[test]
    fn proxies_take_consecutive_ports() {
        let ports = |first: &str, count| consecutive(first.parse().expect("an address"), count);
        let found = ports("127.0.0.1:8080", 3).expect("room");
        assert_eq!(found.iter().map(SocketAddr::port).collect::<Vec<_>>(), [8080, 8081, 8082]);
        assert!(ports("127.0.0.1:65535", 2).is_err());
    }
}
