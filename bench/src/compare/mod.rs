//! Proxies side by side: the same engines, the same load, the same run.
//!
//! Rounds are alternated and medians taken over them, because the other load of a machine changes
//! from second to second; latency is paired with a direct measurement taken just before. CPU is the
//! time that the kernel charged to the proxy's processes, which neighbours disturb far less than
//! they disturb rates and delays. With two cores or more the proxy has one for itself, and client
//! and engines share the rest.

mod closed;
mod latency;
mod report;
mod rival;
mod streams;
mod usage;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tracing::info;

use crate::net::Reserved;
use crate::origin::Origin;
use crate::process::{self, Child};
use closed::Run;
use report::{Added, Sample};
use rival::{Kind, Rival, TestBed};
use usage::Usage;

/// Measure ilb beside haproxy and nginx (Debian: apt-get install haproxy nginx)
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// A proxy to measure; repeat for several [default: haproxy nginx ilb-uring ilb-epoll]
    #[arg(long = "peer", value_enum)]
    peers: Vec<Kind>,
    /// Another build of ilb, measured beside this one in the same rounds; the table then ends with
    /// the medians of the ratios, round by round
    #[arg(long, value_name = "PROGRAM")]
    baseline: Option<PathBuf>,
    /// Alternated rounds; the table shows medians over them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of each closed-loop measurement
    #[arg(long, value_parser = humantime::parse_duration, default_value = "2s")]
    time: Duration,
    /// Connections of the throughput measurement
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Streams open at a time; 0 leaves streams out
    #[arg(long, default_value_t = 100)]
    streams: usize,
    /// Events of each stream
    #[arg(long, default_value_t = 150)]
    events: u32,
    /// Time between two events of a stream, in ms
    #[arg(long, default_value_t = 20)]
    event_gap_ms: u32,
    /// Where to write the table and the samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    out: PathBuf,
    /// Leave the placing of processes on cores to the kernel
    #[arg(long)]
    no_pin: bool,
    /// Run everything measured at this nice value, so that other work on the machine disturbs it
    /// less; below 0 needs root
    #[arg(long, allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    nice: Option<i32>,
}

/// Share of a closed-loop measurement that comes first and is not counted: connections open, pools
/// fill.
const WARM_UP_FRAC: f64 = 0.2;

pub async fn run(args: Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.connections > 0, "wanted at least one round and one connection");
    let rivals = rivals(&args)?;
    let origin = Origin::here()?;
    let _nice = args.nice.map(usage::Nice::set).transpose()?;
    let folder = tempfile::Builder::new().prefix("ilb-compare-").tempdir().context("failed to make a working folder")?;
    let cores = Cores::split(args.no_pin)?;
    let own = process::sibling("ilb-bench")?;
    let addresses = Reserved::new(4)?;
    let (instant, paced) = addresses.split_at(2);
    let mut engines = Vec::new();
    for (number, address) in addresses.iter().enumerate() {
        let name = format!("engine-{number}");
        let mut command = process::logged(&own, &folder.path().join(format!("{name}.log")))?;
        command.args(["engine", "--name", &name, "--listen", &address.to_string()]);
        if number < 2 {
            command.arg("--instant");
        } else {
            // A capacity out of reach: what is measured is the proxy.
            command.args(["--stamp", "--capacity-rps", "1000000", "--prefill-ms", "1", "--tbot"]);
            command.arg(format!("0:{}", args.event_gap_ms));
        }
        let mut engine = Child::spawn(&name, cores.rest(&mut command))?;
        engine.answers(*address, "/health", 200).await?;
        engines.push(engine);
    }
    cores.keep_to_rest()?;

    let mut samples: Vec<(Rival, Vec<Sample>)> = rivals.into_iter().map(|rival| (rival, Vec::new())).collect();
    let mut direct = Vec::new();
    for round in 0..args.rounds {
        direct.push(measure_direct(&args, instant[0], paced[0]).await?);
        for visit in 0..samples.len() {
            let turn = (round + visit) % samples.len();
            let (rival, found) = &mut samples[turn];
            let bed = TestBed { folder: folder.path(), round, cores: &cores };
            let sample =
                measure(&args, rival, &bed, instant, paced).await.with_context(|| format!("{rival}, round {}", round + 1))?;
            info!(round = round + 1, proxy = %rival, "{sample}");
            found.push(sample);
        }
    }
    let report = report::Report::new(&args, &direct, &samples, cores.describe(), origin)?;
    report.write(&args.out)?;
    println!("{}", report.markdown());
    Ok(())
}

/// The rows of the comparison, in the order of the table.
fn rivals(args: &Args) -> Result<Vec<Rival>> {
    let kinds = if args.peers.is_empty() { Kind::ALL.to_vec() } else { args.peers.clone() };
    let mut rivals = Vec::new();
    for kind in kinds {
        rivals.push(Rival::installed(kind)?);
        if let Some(program) = args.baseline.as_deref().filter(|_| kind.is_ilb()) {
            rivals.push(Rival::baseline(kind, program)?);
        }
    }
    Ok(rivals)
}

/// The engines without a proxy.
async fn measure_direct(args: &Args, instant: SocketAddr, paced: SocketAddr) -> Result<Sample> {
    let one = closed_loop(args, instant, 1).await?;
    let many = closed_loop(args, instant, args.connections).await?;
    let streams = streams::run(args, paced).await?;
    Ok(Sample::direct(&one, &many, streams))
}

async fn measure(args: &Args, rival: &Rival, bed: &TestBed<'_>, instant: &[SocketAddr], paced: &[SocketAddr]) -> Result<Sample> {
    let (proxy, front) = rival.start(bed, instant).await?;
    let direct = closed_loop(args, instant[0], 1).await?;
    let before = Usage::of(proxy.group())?;
    let one = closed_loop(args, front, 1).await?;
    let middle = Usage::of(proxy.group())?;
    let many = closed_loop(args, front, args.connections).await?;
    let after = Usage::of(proxy.group())?;
    drop(proxy);

    let (mut added_event, mut cpu_event) = (None, None);
    if args.streams > 0 {
        let (proxy, front) = rival.start(bed, paced).await?;
        let direct = streams::run(args, paced[0]).await?.context("streams are on")?;
        let before = Usage::of(proxy.group())?;
        let found = streams::run(args, front).await?.context("streams are on")?;
        let after = Usage::of(proxy.group())?;
        added_event = Some(Added::of(&found, &direct));
        cpu_event = Some((after.cpu - before.cpu).as_secs_f64() * 1e3 / (found.count as f64 / 1e3));
    }
    let cpu_us = |from: &Usage, to: &Usage, run: &Run| (to.cpu - from.cpu).as_secs_f64() * 1e6 / run.requests as f64;
    Ok(Sample {
        added: Some(Added::of(&one.latency, &direct.latency)),
        latency: one.latency,
        cpu_us_one: Some(cpu_us(&before, &middle, &one)),
        rate_rps: many.rate_rps,
        latency_many: many.latency,
        cpu_us_many: Some(cpu_us(&middle, &after, &many)),
        added_event,
        cpu_ms_per_1000_events: cpu_event,
        memory_mib: Some(after.memory_kib as f64 / 1024.0),
        event: None,
    })
}

async fn closed_loop(args: &Args, address: SocketAddr, connections: usize) -> Result<Run> {
    closed::run(address, connections, args.time, args.time.mul_f64(WARM_UP_FRAC)).await
}

/// Which cores the proxy and the rest run on.
#[derive(Clone, Debug)]
struct Cores {
    /// Empty: everything runs anywhere.
    proxy: Vec<usize>,
    rest: Vec<usize>,
}

impl Cores {
    fn split(is_off: bool) -> Result<Self> {
        let mut rest = usage::allowed_cores()?;
        let count = rest.len();
        if is_off || count < 2 {
            return Ok(Self { proxy: Vec::new(), rest: Vec::new() });
        }
        let proxy = rest.split_off(count - 1);
        Ok(Self { proxy, rest })
    }

    fn proxy<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        usage::pin(command, self.proxy.clone())
    }

    fn rest<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        usage::pin(command, self.rest.clone())
    }

    fn keep_to_rest(&self) -> Result<()> {
        usage::pin_self(&self.rest)
    }

    fn describe(&self) -> String {
        match self.proxy.first() {
            None => "placed by the kernel".to_owned(),
            Some(core) => format!("proxy on core {core}, client and engines on {:?}", self.rest),
        }
    }
}

/// A folder for one visit's files.
fn subfolder(parent: &Path, name: &str) -> Result<PathBuf> {
    let path = parent.join(name);
    std::fs::create_dir_all(&path).with_context(|| format!("failed to make {}", path.display()))?;
    Ok(path)
}
